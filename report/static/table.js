"use strict";
/* Sort, filter, hide columns, download and link to the view of each table. The address keeps what differs from the page
   as it was built: #view&<table>.sort=<column>&<table>.down=1&<table>.find=<text>&<table>.off=<families>&<table>.columns=<shown>. */
(() => {
  const PREFIX = "#view&";
  const readAddress = () => new URLSearchParams(location.hash.startsWith(PREFIX) ? location.hash.slice(PREFIX.length) : "");
  const tables = [];

  const writeAddress = () => {
    const params = new URLSearchParams();
    for (const table of tables) table.save(params);
    const text = params.toString();
    history.replaceState(null, "", text ? PREFIX + text : location.pathname + location.search);
  };

  const quote = (text) => (/[",\n\r]/.test(text) ? '"' + text.replaceAll('"', '""') + '"' : text);
  const toCsv = (rows) => rows.map((row) => row.map(quote).join(",")).join("\n") + "\n";
  const download = (name, text) => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type: "text/csv;charset=utf-8" }));
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  };

  const setUp = (root) => {
    const slug = root.dataset.slug;
    const table = root.querySelector("table");
    const body = table.tBodies[0];
    const heads = [...root.querySelectorAll("thead th")];
    const rows = [...body.rows];
    const search = root.querySelector("input[type=search]");
    const chips = [...root.querySelectorAll(".chip")];
    const boxes = heads.slice(1).map((head) => {
      const [box, label] = [document.createElement("input"), document.createElement("label")];
      box.type = "checkbox";
      box.dataset.column = head.dataset.key;
      label.append(box, ` ${head.textContent.trim()}`);
      root.querySelector(".menu .list").append(label);
      return box;
    });
    const count = root.querySelector(".count");
    const keys = heads.map((head) => head.dataset.key);
    const numeric = heads.map((head) => head.classList.contains("num"));
    const shownFirst = keys.filter((_, i) => !heads[i].hasAttribute("data-hidden")).join(" ");
    let sortKey = "";
    let down = false;

    const said = (text) => (text === "–" ? "" : text); // a text that is its own value stands once
    const raw = (cell) => cell.dataset.v ?? said(cell.textContent.trim());
    const spans = (i) => heads[i].hasAttribute("data-interval"); // value and ends, with blanks between
    const value = (row, i) => spans(i) ? raw(row.cells[i]).split(" ")[0] : raw(row.cells[i]);
    const compare = (a, b, i) => {
      const [x, y] = [value(a, i), value(b, i)];
      if (x === "" || y === "") return x === y ? 0 : x === "" ? 1 : -1; // nothing measured comes last either way
      const number = (text) => (text === "inf" ? Infinity : Number(text));
      const order = numeric[i] ? (number(x) < number(y) ? -1 : number(x) > number(y) ? 1 : 0) : x.localeCompare(y);
      return down ? -order : order;
    };
    const shown = () => keys.filter((key) => key === keys[0] || boxes.find((box) => box.dataset.column === key).checked);

    const draw = () => {
      const index = keys.indexOf(sortKey);
      const sorted = index < 0 ? rows : [...rows].sort((a, b) => compare(a, b, index));
      body.append(...sorted);
      heads.forEach((head, i) => {
        if (i === index) head.setAttribute("aria-sort", down ? "descending" : "ascending");
        else head.removeAttribute("aria-sort");
      });
      const visible = new Set(shown());
      keys.forEach((key, i) => {
        heads[i].toggleAttribute("data-hidden", !visible.has(key));
        table.classList.toggle(`h${i + 1}`, !visible.has(key));
      });
      const words = search.value.trim().toLowerCase().split(/\s+/).filter(Boolean);
      const off = new Set(chips.filter((chip) => chip.getAttribute("aria-pressed") === "false").map((chip) => chip.dataset.family));
      let seen = 0;
      for (const row of rows) {
        const text = row.textContent.toLowerCase();
        row.hidden = off.has(row.dataset.family) || !words.every((word) => text.includes(word));
        seen += !row.hidden;
      }
      count.textContent = seen === rows.length ? "" : `${seen} of ${rows.length} rows`;
    };
    const change = () => { draw(); writeAddress(); };

    const save = (params) => {
      const off = chips.filter((chip) => chip.getAttribute("aria-pressed") === "false").map((chip) => chip.dataset.family).join(" ");
      const columns = shown().join(" ");
      if (sortKey) params.set(`${slug}.sort`, sortKey);
      if (sortKey && down) params.set(`${slug}.down`, "1");
      if (search.value) params.set(`${slug}.find`, search.value);
      if (off) params.set(`${slug}.off`, off);
      if (columns !== shownFirst) params.set(`${slug}.columns`, columns);
    };
    const load = (params) => {
      const sort = params.get(`${slug}.sort`) || "";
      sortKey = keys.includes(sort) ? sort : "";
      down = params.get(`${slug}.down`) === "1";
      search.value = params.get(`${slug}.find`) || "";
      const off = (params.get(`${slug}.off`) || "").split(" ");
      chips.forEach((chip) => chip.setAttribute("aria-pressed", String(!off.includes(chip.dataset.family))));
      const columns = (params.get(`${slug}.columns`) ?? shownFirst).split(" ");
      boxes.forEach((box) => { box.checked = columns.includes(box.dataset.column); });
      draw();
      return [...params.keys()].some((key) => key.startsWith(slug + "."));
    };
    const csv = () => {
      const visible = shown().map((key) => keys.indexOf(key));
      const header = visible.flatMap((i) => (spans(i) ? [keys[i], keys[i] + "_low", keys[i] + "_high"] : [keys[i]]));
      const lines = [...body.rows].filter((row) => !row.hidden).map((row) => visible.flatMap((i) => {
        const cell = raw(row.cells[i]);
        return spans(i) ? [...cell.split(" "), "", ""].slice(0, 3) : [cell];
      }));
      return toCsv([header, ...lines]);
    };

    heads.forEach((head, i) => {
      const button = head.querySelector("button");
      button.tabIndex = 0;
      button.addEventListener("click", () => {
        if (sortKey !== keys[i]) { sortKey = keys[i]; down = numeric[i]; }
        else if (down === numeric[i]) down = !down;
        else { sortKey = ""; down = false; }
        change();
      });
    });
    search.addEventListener("input", change);
    boxes.forEach((box) => box.addEventListener("change", change));
    chips.forEach((chip) => chip.addEventListener("click", () => {
      chip.setAttribute("aria-pressed", String(chip.getAttribute("aria-pressed") === "false"));
      change();
    }));
    root.querySelector(".csv").addEventListener("click", () => download(`${slug}-view.csv`, csv()));
    root.querySelector(".tools").hidden = false;
    return { root, save, load, csv };
  };

  const rules = document.createElement("style"); // one a column: the page itself has those of columns that are hidden at first
  const most = Math.max(0, ...[...document.querySelectorAll(".table thead tr")].map((row) => row.cells.length));
  rules.textContent = Array.from({ length: most }, (_, i) => `.h${i + 1} tr > :nth-child(${i + 1}) { display: none; }`).join("\n");
  document.head.append(rules);
  document.querySelectorAll(".table").forEach((root) => tables.push(setUp(root)));
  const fromAddress = () => {
    const params = readAddress();
    const used = tables.filter((table) => table.load(params));
    for (const table of used) { const box = table.root.closest("details"); if (box) box.open = true; }
    if (used.length) (used[0].root.closest("details") || used[0].root.closest("section")).scrollIntoView();
  };
  fromAddress();
  addEventListener("hashchange", () => { if (location.hash.startsWith(PREFIX)) fromAddress(); });
  document.addEventListener("click", (event) => {
    document.querySelectorAll(".menu[open]").forEach((menu) => { if (!menu.contains(event.target)) menu.open = false; });
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") document.querySelectorAll(".menu[open]").forEach((menu) => { menu.open = false; menu.firstElementChild.focus(); });
  });

  const unpacked = (text) => {
    const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"))).text();
  };
  const data = JSON.parse(document.getElementById("data").textContent);
  document.getElementById("downloads").hidden = false;
  document.querySelectorAll(".download").forEach((button) => button.addEventListener("click", async () => {
    download(button.textContent, await unpacked(data.tables[button.dataset.table]));
  }));
})();
