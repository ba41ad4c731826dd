// Helpers for elements, the clipboard and files.

export const byId = (name) => document.getElementById(name);

// An element with these properties and children. Strings become text, never markup.
export function make(name, properties = {}, ...children) {
  const made = document.createElement(name);
  Object.assign(made, properties);
  made.append(...children);
  return made;
}

export function button(text, onClick, properties = {}) {
  const made = make("button", { type: "button", ...properties }, text);
  made.addEventListener("click", onClick);
  return made;
}

// Have a screen reader say something.
export function say(text) {
  byId("said").textContent = text;
}

// A button that copies what `text` returns.
export function copyButton(text, label) {
  const made = button("Copy", async () => {
    const done = await copy(text());
    made.textContent = done ? "Copied" : "Not copied";
    say(done ? "Copied." : "This browser does not let the page copy.");
    setTimeout(() => (made.textContent = "Copy"), 1500);
  }, { className: "small copy", ariaLabel: label });
  return made;
}

// Put a text on the clipboard; returns whether it is there.
export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copyBySelection(text); // over plain HTTP there is no clipboard object
  }
}

function copyBySelection(text) {
  const focused = document.activeElement;
  const area = make("textarea", { className: "unseen", value: text, ariaHidden: "true" });
  document.body.append(area);
  area.select();
  try {
    return document.execCommand("copy");
  } catch {
    return false;
  } finally {
    area.remove();
    focused?.focus();
  }
}

// Let the browser save a file.
export function download(name, type, text) {
  const address = URL.createObjectURL(new Blob([text], { type }));
  const link = make("a", { href: address, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}
