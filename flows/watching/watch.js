// Asks the server every two seconds, and replaces the parts that have changed.
(() => {
  "use strict";

  const shown = {};
  const asked = "api/now" + location.search;

  // Charts are drawn beside the old ones first, so that nothing flickers.
  const replace = async (id, html) => {
    const place = document.getElementById(id);
    if (id !== "charts" || !html) {
      place.innerHTML = html;
      return;
    }
    const next = document.createElement("div");
    next.style.cssText = "height:0;overflow:hidden";
    next.innerHTML = html;
    place.append(next);
    await window.drawCharts(next);
    next.style.cssText = "";
    place.replaceChildren(next);
  };

  const look = async () => {
    try {
      const answer = await fetch(asked);
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
      document.getElementById("machine").textContent = "retemper watch does not answer; what is shown is the last that it said.";
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
