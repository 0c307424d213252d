"use strict";
// Tooltips for marks: by mouse, by touch, and by keyboard, where a figure is one stop of the Tab key and the arrow keys
// go from mark to mark. Without this script the browser shows its own tooltips.
const tip = document.createElement("div");
tip.className = "tip";
tip.setAttribute("aria-hidden", "true"); // screen readers read the same text from the aria-label of the mark
tip.hidden = true;
document.body.append(tip);

let shown = null;

// Fade the marks of other models.
function dimOthers(mark) {
  const hue = mark && [...mark.classList].find((name) => /^c\d+$/.test(name));
  for (const other of (mark ?? shown).ownerSVGElement.querySelectorAll(":is(.mark, g)[data-tip]")) {
    other.classList.toggle("dim", Boolean(hue) && !other.classList.contains(hue));
  }
}

function hide() {
  if (!shown) return;
  dimOthers(null);
  shown.classList.remove("shown");
  shown = null;
  tip.hidden = true;
}

function show(mark) {
  if (mark === shown) return;
  hide();
  shown = mark;
  mark.classList.add("shown");
  dimOthers(mark);
  const [name, ...values] = mark.dataset.tip.split(": ");
  const head = document.createElement("b");
  head.textContent = name;
  tip.replaceChildren(head, ...(values.length ? [document.createElement("br"), values.join(": ")] : []));
  tip.hidden = false;
  place();
}

function place() {
  if (!shown) return;
  const box = shown.getBoundingClientRect();
  const room = document.documentElement.clientWidth - tip.offsetWidth - 8;
  const above = box.top - tip.offsetHeight - 8;
  tip.style.left = `${Math.max(8, Math.min(room, box.left + box.width / 2 - tip.offsetWidth / 2))}px`;
  tip.style.top = `${above >= 8 ? above : box.bottom + 8}px`;
}

for (const plot of document.querySelectorAll("svg.plot")) {
  const marks = [...plot.querySelectorAll("title")].map((title) => {
    const mark = title.parentNode;
    mark.dataset.tip = title.textContent;
    mark.setAttribute("aria-label", title.textContent);
    mark.setAttribute("role", "img");
    mark.setAttribute("tabindex", "-1");
    title.remove();
    return mark;
  });
  if (!marks.length) continue;
  plot.setAttribute("role", "group");
  marks[0].setAttribute("tabindex", "0");
  const markOf = (event) => event.target.closest("[data-tip]");
  // A mouse pointer that rests while the page scrolls must not take the tooltip from the mark that has the focus.
  const leave = () => shown !== document.activeElement && hide();
  for (const kind of ["pointerover", "pointerdown", "focusin"]) {
    plot.addEventListener(kind, (event) => (markOf(event) ? show(markOf(event)) : leave()));
  }
  plot.addEventListener("pointerleave", leave);
  plot.addEventListener("focusout", hide);
  plot.addEventListener("keydown", (event) => {
    const at = marks.indexOf(markOf(event));
    const row = Number(plot.dataset.row) || 1;
    const to = {
      ArrowRight: at + 1, ArrowLeft: at - 1, ArrowDown: at + row, ArrowUp: at - row, Home: 0, End: marks.length - 1,
    }[event.key];
    if (event.key === "Escape") hide();
    if (at < 0 || !marks[to]) return;
    event.preventDefault();
    marks[at].setAttribute("tabindex", "-1");
    marks[to].setAttribute("tabindex", "0");
    marks[to].focus();
  });
}
addEventListener("scroll", place, { capture: true, passive: true }); // focusing a mark can scroll the page
