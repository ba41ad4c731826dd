// The two panels at the sides, the tabs, and the switch of the marks.

import { byId } from "./dom.js";
import { browserStorage } from "./store.js";

const WIDE = { list: matchMedia("(min-width: 75rem)"), drawer: matchMedia("(min-width: 60rem)") };
const storage = browserStorage("localStorage");

const remember = (name, value) => {
  try {
    storage?.setItem(`outrider.${name}`, value);
  } catch {
    // then it lasts as long as the page
  }
};

// A panel beside the conversation. Where there is little room it covers the conversation, and is closed at first.
class Panel {
  constructor(name) {
    this.name = name;
    this.toggle = byId(`${name}-toggle`);
    this.toggle.addEventListener("click", () => {
      this.set(!this.open);
      if (this.wide) remember(name, this.open ? "open" : "closed");
    });
    WIDE[name].addEventListener("change", () => this.reset());
    this.reset();
  }

  get wide() {
    return WIDE[this.name].matches;
  }

  get open() {
    return !byId(this.name).hidden;
  }

  reset() {
    this.set(this.wide && storage?.getItem(`outrider.${this.name}`) !== "closed", false);
  }

  set(open, focus = true) {
    const covers = open && !this.wide;
    if (covers) for (const other of panels) if (other !== this && !other.wide) other.set(false, false);
    byId(this.name).hidden = !open;
    this.toggle.setAttribute("aria-expanded", String(open));
    byId("work").inert = panels.some((panel) => panel.open && !panel.wide);
    if (focus && covers) byId(this.name).focus();
  }
}

const panels = [];
for (const name of ["list", "drawer"]) panels.push(new Panel(name));

// Open a panel.
export function openPanel(name) {
  const panel = panels.find((one) => one.name === name);
  if (!panel.open) panel.set(true);
}

// Close the panels that cover the conversation.
export function uncover() {
  for (const panel of panels) {
    if (!panel.open || panel.wide) continue;
    panel.set(false);
    panel.toggle.focus();
  }
}

// Escape closes a panel that covers the conversation; returns whether there was one.
export function closeCovering() {
  const covering = panels.find((panel) => panel.open && !panel.wide);
  covering?.set(false);
  covering?.toggle.focus();
  return Boolean(covering);
}

const tabs = [...document.querySelectorAll("[role=tab]")];

function select(tab, focus = true) {
  for (const other of tabs) {
    const is = other === tab;
    other.setAttribute("aria-selected", String(is));
    other.tabIndex = is ? 0 : -1;
    byId(other.getAttribute("aria-controls")).hidden = !is;
  }
  document.documentElement.dataset.tab = tab.id;
  if (focus) tab.focus();
}

for (const [i, tab] of tabs.entries()) {
  tab.addEventListener("click", () => select(tab));
  tab.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (step) select(tabs[(i + step + tabs.length) % tabs.length]);
  });
}

// onMarks: told whether tokens are marked by their source.
export function setUp(onMarks) {
  const marks = byId("marks");
  const apply = () => {
    document.documentElement.dataset.marks = marks.checked ? "on" : "off";
    onMarks(marks.checked);
  };
  marks.checked = storage?.getItem("outrider.marks") === "on";
  marks.addEventListener("change", () => {
    remember("marks", marks.checked ? "on" : "off");
    apply();
  });
  apply();
  select(byId(location.hash === "#race" ? "tab-race" : "tab-chat"), false);
}
