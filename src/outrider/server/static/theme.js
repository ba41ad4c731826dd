// Light or dark, set before anything is drawn. A plain script: modules would come too late.
"use strict";
{
  const NAMES = ["auto", "light", "dark"];
  const kept = () => {
    try {
      return localStorage.getItem("outrider.theme");
    } catch {
      return null; // storage may be forbidden
    }
  };
  const show = (name) => {
    document.documentElement.dataset.theme = name;
    const button = document.getElementById("theme");
    if (button) button.textContent = `Theme: ${name}`;
  };
  let now = NAMES.includes(kept()) ? kept() : "auto";
  show(now);
  document.addEventListener("DOMContentLoaded", () => {
    show(now);
    document.getElementById("theme").addEventListener("click", () => {
      now = NAMES[(NAMES.indexOf(now) + 1) % NAMES.length];
      show(now);
      try {
        localStorage.setItem("outrider.theme", now);
      } catch {
        // then it lasts as long as the page
      }
    });
  });
}
