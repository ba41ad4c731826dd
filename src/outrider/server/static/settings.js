// What the forms say about a request. The API key is kept for this tab alone.

const KEY = "outrider.key";
const field = (name) => document.getElementById(name);

export function key() {
  return field("key").value.trim();
}

export function setUp(onKey) {
  try {
    field("key").value = sessionStorage.getItem(KEY) ?? "";
  } catch {
    // then it is asked for again after a reload
  }
  field("key").addEventListener("change", () => {
    try {
      if (key()) sessionStorage.setItem(KEY, key());
      else sessionStorage.removeItem(KEY);
    } catch {
      // kept in the field alone
    }
    onKey();
  });
  field("settings").querySelector("form").addEventListener("submit", (event) => {
    event.preventDefault(); // nothing is sent from here: Enter just ends the typing
    document.activeElement.blur();
  });
}

// Offer the drafters that the server has.
export function offer(names, label) {
  const select = field("speculation");
  const there = new Set([...select.options].map((option) => option.value));
  for (const name of names) {
    if (there.has(name)) continue;
    select.add(new Option(`on, ${label(name)} only`, name), select.options.length - 1);
  }
  if (!names.length) select.value = "off";
  field("no-drafter").hidden = names.length > 0;
}

const number = (name) => {
  const value = field(name).value.trim();
  return value === "" ? undefined : Number(value);
};

// Whether the fields hold what they may; the first that does not is shown.
export function valid() {
  return [...document.querySelectorAll("#settings input")].every((input) => {
    if (input.checkValidity()) return true;
    input.closest("details").open = true;
    return input.reportValidity();
  });
}

// The request's fields. JSON leaves out what is undefined.
export function fields() {
  return {
    temperature: number("temperature"),
    seed: number("seed"),
    max_tokens: number("max-tokens"),
    response_format: field("form").value === "text" ? undefined : { type: field("form").value },
    speculative: speculative(),
    stream: true,
    outrider: true,
  };
}

export function speculative() {
  const method = field("speculation").value;
  if (method === "off") return false;
  return { method, num_speculative_tokens: number("most") };
}
