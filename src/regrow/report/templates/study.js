"use strict";
(() => {
  const data = JSON.parse(document.getElementById("report-data").textContent);
  const $ = (id) => document.getElementById(id);
  const make = (tag, className, text) => {
    const element = document.createElement(tag);
    if (className) element.className = className;
    if (text !== undefined) element.textContent = text;
    return element;
  };
  const keep = (name, link) => {
    const anchor = make("a");
    anchor.download = name;
    anchor.href = link;
    anchor.click();
  };
  const kept = (text, type) => URL.createObjectURL(new Blob([text], { type }));

  /* tables and numbers as files */
  for (const button of document.querySelectorAll("[data-file]")) {
    button.addEventListener("click", () => keep(button.dataset.file, kept(data.files[button.dataset.file], "text/plain")));
  }

  /* a whole figure as a file: all its panels, drawn aside */
  const refuse = () => Promise.reject(new Error("this page loads nothing"));
  for (const button of document.querySelectorAll("[data-whole]")) {
    button.addEventListener("click", async () => {
      const dark = document.documentElement.dataset.theme || (window.matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
      const aside = make("div");
      const result = await window.vegaEmbed(aside, data.figures[button.dataset.whole][dark], {
        renderer: "svg", actions: false, ast: true, loader: { load: refuse, http: refuse, file: refuse }, defaultStyle: false,
      });
      const name = button.dataset.whole + "." + button.dataset.kind;
      if (button.dataset.kind === "svg") keep(name, kept(await result.view.toSVG(), "image/svg+xml"));
      else keep(name, (await result.view.toCanvas(2)).toDataURL("image/png"));
      result.finalize();
      button.dataset.done = "yes";
    });
  }

  /* where a number comes from */
  const tray = $("tray");
  const lines = new Map([...document.querySelectorAll("#run-rows tr")].map((line) => [line.dataset.run, line]));
  function show(places) {
    const list = $("tray-runs");
    list.replaceChildren(...places.map((place) => {
      const entry = make("li");
      const line = lines.get(place);
      if (!line) { entry.append(make("code", "", place)); return entry; }
      const link = make("a");
      link.href = "#" + line.id;
      link.append(make("code", "", place));
      entry.append(link);
      return entry;
    }));
    for (const [place, line] of lines) line.classList.toggle("lit", places.includes(place));
    tray.hidden = false;
  }
  for (const button of document.querySelectorAll(".trace")) {
    button.addEventListener("click", () => show(data.traces[Number(button.dataset.trace)]));
  }
  function hide() {
    tray.hidden = true;
    for (const line of lines.values()) line.classList.remove("lit");
  }
  $("tray-close").addEventListener("click", hide);
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });

  /* runs */
  const words = [...lines.values()].map((line) => [line, line.textContent.toLowerCase()]);
  $("run-filters").addEventListener("submit", (event) => event.preventDefault());
  $("run-search").addEventListener("input", () => {
    const wanted = $("run-search").value.trim().toLowerCase().split(/\s+/);
    let shown = 0;
    for (const [line, text] of words) {
      line.hidden = !wanted.every((word) => text.includes(word));
      if (!line.hidden) shown += 1;
    }
    $("run-shown").textContent = shown === words.length ? words.length + " runs" : shown + " of " + words.length + " runs";
  });
})();
