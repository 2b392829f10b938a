"use strict";
(() => {
  const data = JSON.parse(document.getElementById("report-data").textContent);
  const root = document.documentElement;
  const $ = (id) => document.getElementById(id);
  const make = (tag, className, text) => {
    const element = document.createElement(tag);
    if (className) element.className = className;
    if (text !== undefined) element.textContent = text;
    return element;
  };

  /* theme */
  const systemDark = window.matchMedia("(prefers-color-scheme: dark)");
  const themeNow = () => root.dataset.theme || (systemDark.matches ? "dark" : "light");
  try {
    const kept = window.localStorage.getItem("regrow-theme");
    if (kept === "light" || kept === "dark") root.dataset.theme = kept;
  } catch (refused) { /* storage may be closed to local files; the choice then lasts as long as the page */ }
  $("theme").addEventListener("click", () => {
    root.dataset.theme = themeNow() === "dark" ? "light" : "dark";
    try { window.localStorage.setItem("regrow-theme", root.dataset.theme); } catch (refused) { /* as above */ }
    drawCharts();
  });
  systemDark.addEventListener("change", () => { if (!root.dataset.theme) drawCharts(); });

  /* a sign above every table that is wider than its place */
  const scrollers = [...document.querySelectorAll(".scroll")].map((place) => {
    const sign = make("div", "scroll-sign", "more columns: scroll sideways \u2192");
    sign.setAttribute("aria-hidden", "true");
    place.before(sign);
    const check = () => sign.classList.toggle("on", place.scrollWidth > place.clientWidth + 2);
    new ResizeObserver(check).observe(place);
    return check;
  });
  const checkSigns = () => scrollers.forEach((check) => check());

  /* charts */
  const views = new Map();
  const refuse = () => Promise.reject(new Error("this page loads nothing"));
  function drawCharts() {
    for (const [key, specs] of Object.entries(data.charts)) {
      const place = $("chart-" + key);
      const options = {
        renderer: "svg", actions: false, ast: true, loader: { load: refuse, http: refuse, file: refuse },
        tooltip: { disableDefaultStyle: true }, defaultStyle: false,
      };
      const before = views.get(key);
      window.vegaEmbed(place, specs[themeNow()], options).then((result) => {
        if (before) before.finalize();
        views.set(key, result);
        place.dataset.drawn = themeNow();
      }, (fault) => { place.textContent = "This chart could not be drawn: " + fault.message; throw fault; });
    }
  }
  drawCharts();
  for (const button of document.querySelectorAll("[data-save]")) {
    button.addEventListener("click", async () => {
      const result = views.get(button.dataset.chart);
      if (!result) return;
      const kind = button.dataset.save;
      const link = make("a");
      link.download = button.dataset.chart + "." + kind;
      if (kind === "svg") {
        const svg = await result.view.toSVG();
        link.href = URL.createObjectURL(new Blob([svg], { type: "image/svg+xml" }));
      } else {
        const canvas = await result.view.toCanvas(2);
        link.href = canvas.toDataURL("image/png");
      }
      link.click();
    });
  }

  /* items */
  const { columns, rows, rightAt } = data.items;
  const many = columns.length > 1;
  const several = Boolean($("by-family"));
  const scored = (row) => row.s.map((score) => (score === null ? -1 : score));
  const headers = [
    { name: "Item", key: (row) => row.i },
    ...(several ? [{ name: "Family", key: (row) => row.m }] : []),
    { name: "Capability", key: (row) => row.c },
    ...(many ? [{ name: "Fate", key: (row) => row.f }] : []),
    ...columns.map((label, index) => ({ name: label, key: (row) => scored(row)[index] })),
  ];
  const PAGE = 25;
  let shown = PAGE;
  let order = { column: -1, down: false };
  const haystack = rows.map((row) => [row.i, row.m, row.c, row.k, row.f, row.q, ...row.r].join("\n").toLowerCase());
  const place = new Map(rows.map((row, index) => [row, index]));

  headers.forEach((header, index) => {
    const cell = make("th");
    cell.scope = "col";
    const button = make("button", "", header.name);
    button.type = "button";
    button.addEventListener("click", () => {
      order = { column: index, down: order.column === index && !order.down };
      shown = PAGE;
      drawItems();
    });
    cell.append(button);
    $("item-head").append(cell);
  });
  const fill = (select, values) => {
    for (const value of values) select.append(new Option(value, value));
  };
  fill($("by-capability"), new Set(rows.map((row) => row.c)));
  if (several) fill($("by-family"), new Set(rows.map((row) => row.m)));
  if ($("by-fate")) fill($("by-fate"), new Set(rows.map((row) => row.f).sort()));

  function chosen() {
    const words = $("search").value.trim().toLowerCase();
    const capability = $("by-capability").value;
    const fate = $("by-fate") ? $("by-fate").value : "";
    const family = several ? $("by-family").value : "";
    const kept = rows.filter((row, index) =>
      (!family || row.m === family) && (!capability || row.c === capability) && (!fate || row.f === fate) && (!words || haystack[index].includes(words)));
    if (order.column >= 0) {
      const key = headers[order.column].key;
      const sign = order.down ? -1 : 1;
      kept.sort((a, b) => {
        const [x, y] = [key(a), key(b)];
        const way = typeof x === "number" ? x - y : x.localeCompare(y, undefined, { numeric: true });
        return sign * way || place.get(a) - place.get(b);
      });
    }
    return kept;
  }

  function answers(row) {
    const box = make("div");
    if (row.q) box.append(make("p", "question", row.q));
    const side = make("div", "side");
    columns.forEach((label, index) => {
      if (row.s[index] === null) return;
      const right = row.s[index] >= rightAt;
      const answer = make("div", "answer " + (right ? "right" : "wrong"));
      const title = make("h4");
      title.append(make("span", "dot s" + index), label, make("span", "mark", right ? "right" : "wrong"));
      answer.append(title, make("pre", "", row.r[index] || "(empty answer)"));
      const more = row.l[index] - row.r[index].length;
      if (more > 0) answer.append(make("p", "cut", more.toLocaleString("en") + " more characters"));
      side.append(answer);
    });
    box.append(side);
    return box;
  }

  function itemRow(row) {
    const line = make("tr");
    const first = make("td");
    const open = make("button", "open");
    open.type = "button";
    open.setAttribute("aria-expanded", "false");
    open.append(make("code", "", row.i));
    open.addEventListener("click", () => {
      const isOpen = open.getAttribute("aria-expanded") === "true";
      open.setAttribute("aria-expanded", String(!isOpen));
      if (isOpen) { line.nextSibling.remove(); return; }
      const detail = make("tr", "detail");
      const cell = make("td");
      cell.colSpan = headers.length;
      cell.append(answers(row));
      detail.append(cell);
      line.after(detail);
    });
    first.append(open);
    const second = make("td", "", row.c);
    if (row.k) second.append(" ", make("span", "kind", row.k));
    line.append(first);
    if (several) line.append(make("td", "", row.m));
    line.append(second);
    if (many) {
      const third = make("td");
      third.append(make("span", "chip fate-" + row.f.replaceAll(" ", "-"), row.f));
      line.append(third);
    }
    for (const score of row.s) {
      const cell = make("td");
      if (score === null) { cell.textContent = "\u2013"; line.append(cell); continue; }
      const right = score >= rightAt;
      const whole = score === 0 || score === 1;
      cell.append(make("span", right ? "yes" : "no", (right ? "✓ " : "✗ ") + (whole ? (right ? "right" : "wrong") : score.toFixed(2))));
      line.append(cell);
    }
    return line;
  }

  function drawItems() {
    const kept = chosen();
    const body = $("item-rows");
    body.replaceChildren(...kept.slice(0, shown).map(itemRow));
    if (!kept.length) {
      const line = make("tr");
      const cell = make("td", "none", "No item matches.");
      cell.colSpan = headers.length;
      line.append(cell);
      body.append(line);
    }
    $("shown").textContent = kept.length === rows.length ? rows.length + " items" : kept.length + " of " + rows.length + " items";
    $("more").hidden = kept.length <= shown;
    [...$("item-head").children].forEach((cell, index) => {
      if (index === order.column) cell.setAttribute("aria-sort", order.down ? "descending" : "ascending");
      else cell.removeAttribute("aria-sort");
    });
    checkSigns();
  }
  for (const id of ["search", "by-family", "by-capability", "by-fate"]) {
    if ($(id)) $(id).addEventListener("input", () => { shown = PAGE; drawItems(); });
  }
  $("filters").addEventListener("submit", (event) => event.preventDefault());
  $("more").addEventListener("click", () => { shown += 4 * PAGE; drawItems(); });
  drawItems();
})();
