/* Hover texts for those who do not hover, and a sign where a picture or table is wider than its place.
   A picture is one stop of the keyboard: arrow keys walk its marks from left to right, Home and End go to the first and the last,
   Escape leaves them. A tap shows a mark's text too, and a column's head in use what its column says of itself. A text stays until the
   next one, below what it belongs to: nothing may move away under a finger. */
(() => {
  const tell = (box, text) => {
    const before = box.nextElementSibling?.matches(".cut-note") ? box.nextElementSibling : box;
    let tip = before.nextElementSibling;
    if (!tip?.matches(".tip")) {
      if (!text) return;
      tip = document.createElement("output");
      tip.className = "tip";
      before.after(tip);
    }
    tip.textContent = text;
  };

  document.querySelectorAll(".plot").forEach((plot) => {
    let marks = null, at = -1;
    const ordered = () => {
      marks ??= [...plot.querySelectorAll("g > title")].map(({ parentNode }) => [parentNode.getBoundingClientRect().left, parentNode])
        .sort((a, b) => a[0] - b[0]).map(([, mark]) => mark);
      return marks.length;
    };
    const show = (index) => {
      marks[at]?.classList.remove("seen");
      at = index;
      const mark = marks[at];
      if (!mark) return tell(plot, "");
      mark.classList.add("seen");
      tell(plot, `${mark.querySelector("title").textContent} (${at + 1} of ${marks.length})`);
      const own = mark.getBoundingClientRect(), room = plot.getBoundingClientRect();
      if (own.left < room.left || own.right > room.right) plot.scrollLeft += own.left - room.left - room.width / 2;
    };
    plot.addEventListener("keydown", (event) => {
      const last = ordered() - 1, next = at < last ? at + 1 : 0, back = at > 0 ? at - 1 : last;
      const to = { ArrowRight: next, ArrowDown: next, ArrowLeft: back, ArrowUp: back, Home: 0, End: last, Escape: -1 }[event.key];
      if (last < 0 || to === undefined) return;
      event.preventDefault();
      show(to);
    });
    plot.addEventListener("click", (event) => {
      const mark = event.target.closest("g:has(> title)");
      if (mark && ordered()) show(marks.indexOf(mark));
    });
  });

  document.querySelectorAll(".table").forEach((root) => {
    const box = root.querySelector(".scroll");
    root.addEventListener("focusin", ({ target }) => {
      const head = target.closest("thead button");
      if (head) tell(box, head.title ? `${head.textContent}: ${head.title}` : "");
    });
  });

  const wide = [...document.querySelectorAll(".plot, .scroll")];
  const look = (box) => box.classList.toggle("cut", box.scrollLeft + box.clientWidth < box.scrollWidth - 2);
  for (const box of wide) {
    const note = document.createElement("p");
    note.className = "cut-note";
    note.textContent = "Wider than the screen: scroll sideways.";
    box.after(note);
    box.addEventListener("scroll", () => look(box), { passive: true });
  }
  const watch = new ResizeObserver((entries) => requestAnimationFrame(() => entries.forEach(({ target }) => look(target))));
  for (const box of wide) {
    look(box);
    watch.observe(box);
  }
})();
