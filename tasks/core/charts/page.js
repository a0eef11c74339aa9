// What a page does in the browser: draws its charts, sorts its tables, opens the fold that an address points into.
(() => {
  "use strict";

  const font = getComputedStyle(document.body).fontFamily;
  const config = (wide) => ({
    background: "transparent",
    font,
    view: { stroke: null },
    axis: {
      domainColor: "var(--soft)", tickColor: "var(--grid)", gridColor: "var(--grid)", labelColor: "var(--soft)", titleColor: "var(--soft)",
      labelFontSize: 12, titleFontSize: 12, titleFontWeight: "normal", domain: false, titlePadding: 8, labelOverlap: true,
    },
    axisX: { tickCount: wide ? 6 : 4, labelFlush: false }, // flush, the labels at the ends are not below their ticks
    axisY: { tickCount: 5, labelLimit: wide ? 240 : 190 },
    axisYDiscrete: { grid: false, ticks: false, labelColor: "var(--ink)", labelFontSize: wide ? 13 : 11, labelPadding: 8 },
    line: { strokeWidth: 1.8, strokeJoin: "round" },
    rule: { color: "var(--soft)" },
  });

  // Vega-Lite 6.4 takes the texts of a tooltip from the cell around the nearest point, which has none (vega-lite#9707).
  const ofPoint = (spec) => {
    for (const mark of spec.marks ?? []) {
      const told = mark.encode?.update;
      if (told?.isVoronoi && told.tooltip) told.tooltip.signal = told.tooltip.signal.replace(/\bdatum(\.datum)?\[/g, "datum.datum[");
      ofPoint(mark);
    }
    return spec;
  };

  const draw = (figure) => {
    const spec = JSON.parse(figure.querySelector("script").textContent);
    const place = figure.appendChild(document.createElement("div"));
    return vegaEmbed(place, spec, {
      mode: "vega-lite", renderer: "svg", actions: false, ast: true, logLevel: 1, // ast: no expression is compiled, so no eval
      config: config(figure.clientWidth > 500), patch: ofPoint,
      tooltip: { disableDefaultStyle: true },
    }).then(() => {
      const drawing = figure.querySelector("svg");
      drawing.setAttribute("role", "img");
      drawing.setAttribute("aria-label", figure.querySelector("figcaption").textContent);
      figure.classList.add("drawn");
    });
  };

  // What is in a closed fold has no width, and is drawn when it opens.
  const drawAll = (root) =>
    [...root.querySelectorAll(".plot:not([data-begun])")].filter((figure) => !figure.closest("details:not([open])")).map((figure) => {
      figure.dataset.begun = "";
      return draw(figure);
    });

  const key = (cell) => (cell.dataset.value ?? cell.textContent).trim();
  const number = (text) => {
    const found = text.replace(/[,<>\s\u00a0]/g, "").replace("\u2212", "-").match(/^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?/i);
    return found ? Number(found[0]) : NaN;
  };
  const isEmpty = (text) => text === "" || text === "-";

  const sort = (table, column, descending) => {
    const body = table.tBodies[0];
    const rows = [...body.rows].map((row, place) => ({ row, place, text: key(row.cells[column]) }));
    const told = rows.filter((one) => !isEmpty(one.text));
    const numeric = told.every((one) => !Number.isNaN(number(one.text)));
    const compare = numeric ? (a, b) => number(a.text) - number(b.text) : (a, b) => a.text.localeCompare(b.text);
    rows.sort((a, b) => isEmpty(a.text) - isEmpty(b.text) || (descending ? -1 : 1) * compare(a, b) || a.place - b.place);
    if (isEmpty(rows[0].text)) return;
    body.append(...rows.map((one) => one.row));
  };

  for (const table of document.querySelectorAll("table.stack")) {
    if (table.tBodies[0].rows.length < 2) continue;
    [...table.tHead.rows[0].cells].forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const before = head.getAttribute("aria-sort");
        const descending = before ? before === "ascending" : !head.classList.contains("name");
        for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", descending ? "descending" : "ascending");
        sort(table, column, descending);
      });
    });
  }

  // A table that is cut off can be scrolled with the keyboard.
  const wide = new ResizeObserver((seen) => {
    for (const { target } of seen) target.tabIndex = target.scrollWidth > target.clientWidth ? 0 : -1;
  });
  for (const box of document.querySelectorAll(".wide")) wide.observe(box);

  const unfold = () => {
    for (let place = location.hash && document.getElementById(location.hash.slice(1)); place; place = place.parentElement)
      if (place.tagName === "DETAILS") place.open = true;
  };
  addEventListener("hashchange", unfold);
  document.addEventListener("toggle", (event) => event.target.open && drawAll(event.target), true);
  unfold();
  window.drawCharts = (root) => Promise.all(drawAll(root)); // for a page whose charts change
  Promise.all(drawAll(document)).then(() => (document.body.dataset.ready = ""));
})();
