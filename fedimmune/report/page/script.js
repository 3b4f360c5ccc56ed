"use strict";
(() => {
  const tip = document.getElementById("tip");
  const shown = (value, share) =>
    value === null ? "–" : share ? (100 * value).toFixed(1) + "%" : String(value);

  function show(text, event) {
    tip.textContent = text;
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    const right = event.clientX + 14 + box.width > document.documentElement.clientWidth;
    const left = right ? event.clientX - 14 - box.width : event.clientX + 14;
    tip.style.left = Math.max(4, left) + "px";
    const below = event.clientY + 14;
    tip.style.top = Math.max(4, Math.min(below, window.innerHeight - box.height - 4)) + "px";
  }

  function hide() {
    tip.hidden = true;
  }

  /* What lies at a share of a picture's width: the column or the round. */
  const within = (share, count) => Math.min(count - 1, Math.max(0, Math.floor(share * count)));

  function follow(element, move, leave) {
    element.addEventListener("pointermove", move);
    element.addEventListener("pointerdown", move);
    element.addEventListener("pointerleave", () => { hide(); if (leave) leave(); });
  }

  for (const picture of document.querySelectorAll("svg[data-lines]")) {
    const data = JSON.parse(picture.dataset.lines);
    const cursor = picture.querySelector(".cursor");
    follow(picture, (event) => {
      const box = picture.getBoundingClientRect();
      const x = ((event.clientX - box.left) / box.width) * data.width;
      const step = data.length > 1 ? (data.to - data.from) / (data.length - 1) : 1;
      const index = Math.min(data.length - 1, Math.max(0, Math.round((x - data.from) / step)));
      const at = data.length > 1 ? data.from + index * step : data.from;
      cursor.setAttribute("x1", at);
      cursor.setAttribute("x2", at);
      cursor.setAttribute("visibility", "visible");
      const lines = data.series.map(([label, values]) =>
        label + ": " + shown(index < values.length ? values[index] : null, data.share));
      show([data.along + " " + (index + 1), ...lines].join("\n"), event);
    }, () => cursor.setAttribute("visibility", "hidden"));
  }

  for (const picture of document.querySelectorAll("svg[data-grid]")) {
    const data = JSON.parse(picture.dataset.grid);
    follow(picture, (event) => {
      const box = picture.getBoundingClientRect();
      const column = within((event.clientX - box.left) / box.width, data.columns.length);
      const row = within((event.clientY - box.top) / box.height, data.rows.length);
      const cell = data.cells[row][column];
      const lines = [data.rows[row] + ", " + data.columns[column]];
      const value = data.values[row][column];
      if (cell < 0) lines.push("took no part");
      else {
        if (value !== null) {
          lines.push(data.share ? "weight " + shown(value, true) : value + " samples");
        }
        if (data.notes[cell]) lines.push(data.notes[cell]);
      }
      if (data.warnings[column]) lines.push("warning: " + data.warnings[column]);
      show(lines.join("\n"), event);
    });
  }

  for (const element of document.querySelectorAll("[data-tip]")) {
    follow(element, (event) => show(element.dataset.tip, event));
  }

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
