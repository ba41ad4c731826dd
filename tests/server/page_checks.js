// What a test asks the page about itself.

const rgb = (text) => {
  const canvas = document.createElement("canvas").getContext("2d");
  canvas.fillStyle = text;
  canvas.fillRect(0, 0, 1, 1);
  return [...canvas.getImageData(0, 0, 1, 1).data];
};

// Relative luminance and contrast as WCAG 2 defines them.
const luminance = (colour) =>
  [0.2126, 0.7152, 0.0722].reduce((sum, weight, i) => {
    const part = colour[i] / 255;
    return sum + weight * (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
  }, 0);
const contrast = (one, other) => {
  const [light, dark] = [luminance(one), luminance(other)].sort((a, b) => b - a);
  return (light + 0.05) / (dark + 0.05);
};
const behind = (element) => {
  for (let at = element; at; at = at.parentElement) {
    const colour = rgb(getComputedStyle(at).backgroundColor);
    if (colour[3] === 255) return colour;
  }
  return [255, 255, 255];
};

// Texts with a contrast below 4.5, and tokens' marks with one below 3.
const faint = () => {
  const found = [];
  for (const element of document.querySelectorAll("body *")) {
    const text = [...element.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.data.trim());
    if (!text || !element.checkVisibility() || element.closest(":disabled, svg, noscript")) continue;
    const ratio = contrast(rgb(getComputedStyle(element).color), behind(element));
    if (ratio < 4.5) found.push(`${element.outerHTML.slice(0, 80)}: ${ratio}`);
  }
  for (const element of document.querySelectorAll("[class*=from-]")) {
    const style = getComputedStyle(element);
    if (style.textDecorationLine === "none") continue;
    const ratio = contrast(rgb(style.textDecorationColor), behind(element));
    if (ratio < 3) found.push(`the mark of ${element.className}: ${ratio}`);
  }
  return found;
};

// Elements that assistive technology has no name for.
const nameless = () =>
  [...document.querySelectorAll("button, input, select, textarea, [role], section, svg")]
    .filter((element) => {
      const named = element.labels?.length || element.ariaLabel || element.getAttribute("aria-labelledby");
      return !named && !element.textContent.trim() && !["alert", "status"].includes(element.role);
    })
    .map((element) => element.outerHTML);

// Ids that are referred to and that nothing has.
const dangling = () => {
  const names = ["aria-labelledby", "aria-controls", "aria-describedby", "for"];
  return names.flatMap((name) =>
    [...document.querySelectorAll(`[${name}]`)]
      .flatMap((element) => element.getAttribute(name).split(" "))
      .filter((id) => !document.getElementById(id)),
  );
};

// Ids that two elements have.
const doubled = () => {
  const ids = [...document.querySelectorAll("[id]")].map((element) => element.id);
  return ids.filter((id, i) => ids.indexOf(id) !== i);
};
