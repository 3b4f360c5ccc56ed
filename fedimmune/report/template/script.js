"use strict";
(() => {
  /* Tables come by columns, and words that repeat as places in a list. */
  function rows(columns) {
    const names = Object.keys(columns);
    const length = names.length ? (columns[names[0]].places ?? columns[names[0]]).length : 0;
    const value = (column, i) => (column.words ? column.words[column.places[i]] : column[i]);
    return Array.from({ length }, (_, i) =>
      Object.fromEntries(names.map((name) => [name, value(columns[name], i)])));
  }

  const options = {
    mode: "vega-lite",
    ast: true, /* expressions are interpreted: the page allows no code but its own */
    renderer: "svg",
    config: JSON.parse(document.getElementById("theme").textContent),
    actions: { export: { svg: true, png: true }, source: false, compiled: false, editor: false },
    tooltip: { disableDefaultStyle: true },
    downloadFileName: "figure",
  };

  async function draw() {
    for (const figure of document.querySelectorAll("figure")) {
      const spec = JSON.parse(figure.querySelector("script").textContent);
      for (const name of Object.keys(spec.datasets)) spec.datasets[name] = rows(spec.datasets[name]);
      try {
        await vegaEmbed(figure.querySelector(".picture"), spec, options);
      } catch (error) {
        console.error(figure.dataset.name, error);
      }
    }
    document.documentElement.dataset.drawn = "yes";
  }

  draw();

  /* Numbers by size, texts by alphabet; what has no figure comes last either way. */
  function key(cell) {
    const text = cell.dataset.value ?? cell.textContent.replace("%", "");
    if (text === "" || text === "–") return null;
    const number = Number(text);
    /* Numbers of so many digits would be rounded: they are ids. */
    return Number.isNaN(number) || /^\d{16,}$/.test(text) ? text : number;
  }

  function compare(one, other, sign) {
    if (one === null || other === null) return (one === null) - (other === null);
    if (typeof one === "number" && typeof other === "number") return sign * (one - other);
    return sign * String(one).localeCompare(String(other), "en", { numeric: true });
  }

  for (const table of document.querySelectorAll("table.sortable")) {
    const headings = [...table.querySelectorAll("thead th")];
    headings.forEach((heading, index) => {
      heading.querySelector("button").addEventListener("click", () => {
        const first = heading.classList.contains("number") ? "descending" : "ascending";
        const second = first === "ascending" ? "descending" : "ascending";
        const order = heading.getAttribute("aria-sort") === first ? second : first;
        headings.forEach((other) => other.removeAttribute("aria-sort"));
        heading.setAttribute("aria-sort", order);
        const sign = order === "ascending" ? 1 : -1;
        const rows = [...table.tBodies[0].rows];
        rows.sort((a, b) => compare(key(a.cells[index]), key(b.cells[index]), sign));
        table.tBodies[0].append(...rows);
      });
    });
  }

  for (const button of document.querySelectorAll(".copy")) {
    button.addEventListener("click", () => {
      const code = button.parentElement.querySelector("code");
      const range = document.createRange();
      range.selectNodeContents(code);
      getSelection().removeAllRanges();
      getSelection().addRange(range);
      const copied = navigator.clipboard
        ? navigator.clipboard.writeText(code.textContent)
        : Promise.reject();
      copied.then(() => { button.textContent = "Copied"; },
        () => { button.textContent = document.execCommand("copy") ? "Copied" : "Selected"; });
    });
  }
})();
