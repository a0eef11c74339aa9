// Asks the server every two seconds, and changes what has changed.
(() => {
  "use strict";

  const shown = {};
  const asked = "api/now" + location.search;

  // Makes `place` look like `next`, and leaves what is the same: its focus, its scrolling, and the text that is selected in it.
  const change = (place, next) => {
    for (const { name } of [...place.attributes]) if (!next.hasAttribute(name)) place.removeAttribute(name);
    for (const { name, value } of next.attributes) if (place.getAttribute(name) !== value) place.setAttribute(name, value);
    const before = [...place.childNodes];
    const count = next.childNodes.length; // those that are taken over leave it
    [...next.childNodes].forEach((child, at) => {
      const old = before[at];
      if (!old) place.append(child);
      else if (old.nodeName !== child.nodeName || old.dataset?.key !== child.dataset?.key) old.replaceWith(child);
      else if (child instanceof Element) change(old, child);
      else if (old.data !== child.data) old.data = child.data;
    });
    for (const old of before.slice(count)) old.remove();
  };

  // Charts are drawn beside the old ones first, so that nothing flickers.
  const draw = async (place, html) => {
    const next = document.createElement("div");
    next.style.cssText = "height:0;overflow:hidden";
    next.innerHTML = html;
    place.append(next);
    await window.drawCharts(next);
    next.style.cssText = "";
    place.replaceChildren(next);
  };

  const replace = async (id, html) => {
    const place = document.getElementById(id);
    if (id === "charts" && html) return draw(place, html);
    const next = place.cloneNode(false);
    next.innerHTML = html;
    change(place, next);
  };

  const look = async () => {
    try {
      const answer = await fetch(asked, { signal: AbortSignal.timeout(20000) });
      if (!answer.ok) throw new Error(answer.status);
      const found = await answer.json();
      document.title = found.title;
      document.body.classList.remove("gone");
      document.getElementById("machine").textContent = found.machine;
      for (const [id, html] of Object.entries(found.parts)) {
        if (shown[id] === html) continue;
        shown[id] = html;
        await replace(id, html);
      }
    } catch {
      document.body.classList.add("gone");
      document.getElementById("machine").textContent = "retemper watch does not answer; the page shows its last answer.";
    }
    document.body.dataset.looked = "";
  };

  const again = async () => {
    if (!document.hidden) await look();
    setTimeout(again, 2000);
  };
  document.addEventListener("visibilitychange", () => document.hidden || look());
  addEventListener("DOMContentLoaded", again); // what draws charts is below
})();
