// The form of the settings: those of the conversation that is open, and the API key, which is kept for this tab
// alone. Those used last are those that a new conversation begins with.

import { byId } from "./dom.js";
import { DEFAULTS, cleanSettings, furtherFields, requestFields } from "./request.js";
import { browserStorage } from "./store.js";

const KEY = "outrider.key";
const LAST = "outrider.settings";
const field = (name) => byId(name === "stop" ? "stop-strings" : name.replaceAll("_", "-"));

let now = { ...DEFAULTS };
let show = () => {}; // opens the drawer
let changed = () => {};

export function key() {
  return byId("key").value.trim();
}

// onKey: told of a new key; onChange: of new settings; onShow: opens the drawer.
export function setUp({ onKey, onChange, onShow }) {
  [changed, show] = [onChange, onShow];
  const kept = browserStorage("sessionStorage");
  byId("key").value = kept?.getItem(KEY) ?? "";
  byId("key").addEventListener("change", () => {
    if (key()) keep(kept, KEY, key());
    else kept?.removeItem(KEY);
    onKey();
  });
  for (const form of byId("settings").querySelectorAll("form")) {
    form.addEventListener("submit", (event) => {
      event.preventDefault(); // nothing is sent from here: Enter just ends the typing
      document.activeElement.blur();
    });
  }
  for (const name of Object.keys(DEFAULTS)) {
    for (const kind of ["input", "change"]) field(name).addEventListener(kind, () => take(name));
  }
  byId("defaults").addEventListener("click", () => {
    put(DEFAULTS);
    remember();
  });
}

function take(name) {
  if (now[name] === field(name).value) return;
  now[name] = field(name).value;
  check();
  remember();
}

function remember() {
  keep(browserStorage("localStorage"), LAST, JSON.stringify(now));
  changed();
}

function keep(storage, name, text) {
  try {
    storage?.setItem(name, text);
  } catch {
    // then it lasts as long as the page
  }
}

// The settings used last.
export function last() {
  try {
    return cleanSettings(JSON.parse(browserStorage("localStorage")?.getItem(LAST) ?? "null"));
  } catch {
    return { ...DEFAULTS };
  }
}

// The settings as they are now.
export function values() {
  return { ...now };
}

// Put a conversation's settings into the form.
export function put(settings) {
  now = { ...settings };
  for (const name of Object.keys(DEFAULTS)) {
    const element = field(name);
    element.value = now[name];
    if (element.tagName !== "SELECT" || element.selectedIndex >= 0) continue;
    element.value = DEFAULTS[name]; // a drafter, say, that this server does not have
  }
  check();
}

function check() {
  let wrong = "";
  try {
    furtherFields(now.more);
  } catch (error) {
    wrong = error.message;
  }
  field("more").setCustomValidity(wrong);
}

// Offer the drafters that the server has.
export function offer(names, label) {
  const select = byId("speculation");
  const there = new Set([...select.options].map((option) => option.value));
  for (const name of names) {
    if (there.has(name)) continue;
    select.add(new Option(`${label(name)} only`, name), select.options.length - 1);
    if (now.speculation === name) select.value = name;
  }
  if (!names.length) select.value = "off";
  byId("no-drafter").hidden = names.length > 0;
}

// Whether the fields hold what they may; the first that does not is shown.
export function valid() {
  return Object.keys(DEFAULTS).every((name) => {
    const element = field(name);
    if (element.checkValidity()) return true;
    show();
    byId("settings").open = true;
    return element.reportValidity();
  });
}

// The request's fields, without its messages.
export function fields() {
  return requestFields({ ...now, speculation: byId("speculation").value });
}
