// From the settings of a conversation to the fields of a request. Settings are texts, as the fields of the form
// hold them, under the API's names; an empty text leaves a field out.

export const DEFAULTS = {
  system: "",
  temperature: "0",
  top_p: "",
  top_k: "",
  min_p: "",
  seed: "",
  max_tokens: "1024",
  stop: "",
  speculation: "auto",
  num_speculative_tokens: "",
  response_format: "text",
  more: "",
};

const MAX_CHARS = 200_000; // of one setting
const NUMBERS = ["temperature", "top_p", "top_k", "min_p", "seed", "max_tokens"];
// What "further fields" may not set: the page itself needs them to be as they are.
const OWN = ["messages", "stream", "stream_options", "outrider", "n", "best_of", "continue_final_message", "add_generation_prompt", "echo"];

// Settings with every name and nothing else, from a value of any kind.
export function cleanSettings(raw) {
  const found = { ...DEFAULTS };
  if (raw === null || typeof raw !== "object") return found;
  for (const name of Object.keys(DEFAULTS)) {
    const value = raw[name];
    if (typeof value === "string" && value.length <= MAX_CHARS) found[name] = value;
    else if (typeof value === "number" && Number.isFinite(value)) found[name] = String(value);
  }
  return found;
}

// The stop strings: one a line, with \n, \t and \\ for a line end, a tab and a backslash.
export function stopStrings(text) {
  const escapes = { n: "\n", t: "\t", "\\": "\\" };
  const found = text.split("\n").map((line) => line.replace(/\\([nt\\])/g, (_, letter) => escapes[letter]));
  return found.filter((line) => line !== "");
}

// The object that a text of further fields holds. Throws an Error that says what is wrong.
export function furtherFields(text) {
  if (!text.trim()) return {};
  let found;
  try {
    found = JSON.parse(text);
  } catch {
    throw new Error('Further fields must be a JSON object, such as {"repetition_penalty": 1.1}.');
  }
  if (found === null || typeof found !== "object" || Array.isArray(found)) {
    throw new Error('Further fields must be a JSON object, such as {"repetition_penalty": 1.1}.');
  }
  const taken = OWN.find((name) => Object.hasOwn(found, name));
  if (taken) throw new Error(`Further fields may not have “${taken}”: the page sets it.`);
  return found;
}

// The field `speculative`.
export function speculative(settings) {
  const { speculation: method, num_speculative_tokens: most } = settings;
  if (method === "off") return false;
  return { method, num_speculative_tokens: most.trim() === "" ? undefined : Number(most) };
}

// The fields of a request without its messages. JSON leaves out what is undefined. Throws as furtherFields does.
export function requestFields(settings) {
  const numbers = NUMBERS.map((name) => {
    const text = settings[name].trim();
    return [name, text === "" ? undefined : Number(text)];
  });
  const stop = stopStrings(settings.stop);
  return {
    ...Object.fromEntries(numbers),
    stop: stop.length ? stop : undefined,
    response_format: settings.response_format === "text" ? undefined : { type: settings.response_format },
    speculative: speculative(settings),
    ...furtherFields(settings.more),
    stream: true,
    outrider: true,
  };
}
