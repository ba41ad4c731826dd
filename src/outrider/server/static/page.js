// Puts the page together.

import { Chat } from "./chat.js";
import { Live } from "./live.js";
import { Race } from "./race.js";
import { key, offer, setUp } from "./settings.js";
import { SOURCES, inspect } from "./tokens.js";

const byId = (name) => document.getElementById(name);
const base = (path) => String(path ?? "").split(/[\\/]/).at(-1);

// Show what went wrong, or with null that nothing is wrong now.
function failure(error) {
  const box = byId("failure");
  box.hidden = !error;
  if (!error) return;
  const asks = error.status === 401;
  byId("failure-text").textContent = asks
    ? `${key() ? "This server does not know the API key." : "This server asks for an API key."} Enter it in the settings.`
    : error.message;
  byId("failure-key").hidden = !asks;
}

let lookFailed = false; // whether the message shown is about looking at the server

function status({ model, speculation, engine }) {
  if (lookFailed) failure(null);
  lookFailed = false;
  const draft = model.draft ? `, draft ${base(model.draft)}` : "";
  byId("model").textContent = `${model.names[0]}${draft}, speculation: ${speculation.method}`;
  byId("state").textContent = engine.healthy
    ? `${engine.running} running, ${engine.waiting} waiting`
    : "the engine has failed: start the server again";
  byId("state").dataset.healthy = String(engine.healthy);
  offer(speculation.drafters, (name) => SOURCES[name] ?? name);
  if (!model.has_chat_template) {
    lookFailed = true;
    failure(new Error("This model has no chat template, so it cannot chat. Start the server with --chat-template."));
  }
}

function unseen(error) {
  byId("state").textContent = error.status === 401 ? "an API key is needed" : "no answer";
  byId("state").dataset.healthy = "false";
  if (byId("failure").hidden || lookFailed) {
    lookFailed = true;
    failure(error);
  }
}

const told = (error) => {
  lookFailed = false;
  failure(error);
};
const live = new Live(key, status, unseen);
const busy = (is) => {
  for (const name of ["send", "race-start"]) byId(name).disabled = is;
};
const chat = new Chat(live, told, busy);
const race = new Race(live, told, busy);

setUp(() => {
  failure(null);
  lookFailed = false;
  live.look();
});
byId("failure-key").addEventListener("click", () => {
  byId("settings").open = true;
  byId("key").focus();
});
inspect(byId("work"), byId("inspector"));

const tabs = [...document.querySelectorAll("[role=tab]")];
function select(tab, focus = true) {
  for (const other of tabs) {
    const is = other === tab;
    other.setAttribute("aria-selected", String(is));
    other.tabIndex = is ? 0 : -1;
    byId(other.getAttribute("aria-controls")).hidden = !is;
  }
  if (focus) tab.focus();
}
for (const [i, tab] of tabs.entries()) {
  tab.addEventListener("click", () => select(tab));
  tab.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (step) select(tabs[(i + step + tabs.length) % tabs.length]);
  });
}
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  chat.stop();
  race.stop();
});
if (location.hash === "#race") select(byId("tab-race"), false);
// Where there is little room, what is not needed at first is folded away.
if (matchMedia("(max-width: 60rem)").matches) byId("settings").open = false;

live.look();
