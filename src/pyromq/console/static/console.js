// What pages cannot do without a script: fresh parts, the zone of times, colours, keys, and following messages as they come.
// Every page works without it.
"use strict";

const REFRESH_SECONDS = 5;

// --- the zone of times: the server writes and reads times in the zone that the cookie names

const shownZone = document.documentElement.dataset.zone;
const ownZone = Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC";
const clock = new Intl.DateTimeFormat("sv-SE", { timeStyle: "medium", timeZone: shownZone });
const zoneOfCookie = () => document.cookie.match(/(?:^|; )pyromq-zone=([^;]*)/)?.[1];

function useZone(zone) {
  document.cookie = `pyromq-zone=${zone}; path=/; max-age=31536000; samesite=lax`;
  if (zone !== shownZone && zoneOfCookie() === zone) location.reload();
}

// UTC in the cookie is a choice; another zone is this browser's, which changes when its owner travels.
if (zoneOfCookie() !== "UTC" && zoneOfCookie() !== ownZone) useZone(ownZone);
const zoneSwitch = document.querySelector("[data-zone-switch]");
if (zoneSwitch && ownZone !== "UTC") {
  const other = shownZone === "UTC" ? ownZone : "UTC";
  zoneSwitch.textContent = `Use ${other}`;
  zoneSwitch.hidden = false;
  zoneSwitch.addEventListener("click", () => useZone(other));
}

// --- parts that stay fresh

const offline = document.getElementById("offline");

async function refresh() {
  const parts = document.querySelectorAll("[data-live][id]");
  if (!parts.length || document.hidden) return;
  let answer;
  try {
    answer = await fetch(location.href, { headers: { "x-refresh": "1" }, redirect: "error" });
  } catch {
    offline.textContent = "The console does not answer. What is shown is as of " + clock.format(shownAt) + ".";
    offline.hidden = false;
    return;
  }
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const error = page.querySelector("section.error .said");
  if (error) {
    offline.textContent = error.textContent + " – what is shown is as of " + clock.format(shownAt) + ".";
    offline.hidden = false;
    return;
  }
  offline.hidden = true;
  shownAt = new Date();
  for (const part of parts) {
    const fresh = page.getElementById(part.id);
    if (!fresh || part.contains(document.activeElement) || part.querySelector("details[open]")) continue;
    if (fresh.innerHTML !== part.innerHTML) part.replaceChildren(...fresh.childNodes);
  }
}

let shownAt = new Date();
setInterval(refresh, REFRESH_SECONDS * 1000);

// --- light, dark, as the system

const THEMES = ["system", "light", "dark"];
const themeSwitch = document.querySelector("[data-theme-switch]");

function showTheme() {
  const theme = document.documentElement.dataset.theme || "system";
  themeSwitch.setAttribute("aria-label", "Colours: " + (theme === "system" ? "as the system" : theme));
  themeSwitch.title = themeSwitch.getAttribute("aria-label");
}

if (themeSwitch) {
  showTheme();
  themeSwitch.addEventListener("click", () => {
    const theme = document.documentElement.dataset.theme || "system";
    const next = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
    if (next === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = next;
    try {
      localStorage.setItem("theme", next);
    } catch {
      // it lasts as long as the page
    }
    showTheme();
  });
}

// --- deleting: the button wakes when the name is typed; others ask once more

for (const form of document.querySelectorAll("form[data-typed]")) {
  const field = form.querySelector("input[name=name]");
  const button = form.querySelector("button");
  const wake = () => { button.disabled = field.value !== form.dataset.typed; };
  field.addEventListener("input", wake);
  wake();
}
document.addEventListener("submit", (event) => {
  const question = event.target.dataset.confirm;
  if (question && !confirm(question)) event.preventDefault();
});

// --- what a cell cuts off is its title

document.addEventListener("mouseover", (event) => {
  const cell = event.target.closest?.("tbody th, tbody td");
  if (cell && cell.scrollWidth > cell.clientWidth && !cell.querySelector("[title]")) cell.title = cell.innerText;
});

// --- a refused form, wherever it is on its page

document.querySelector("[data-refused]")?.scrollIntoView({ block: "center" });

// --- on narrow screens the menu is a row that is longer than the screen

document.querySelector("nav.side [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });

// --- keys: / finds, g and a letter goes

let wentG = false;
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea, select")) return;
  if (event.key === "/") {
    document.getElementById("find")?.focus();
    event.preventDefault();
  } else if (wentG) {
    document.querySelector(`nav.side a[data-key="${CSS.escape(event.key)}"]`)?.click();
    wentG = false;
  } else wentG = event.key === "g";
});

// --- copy

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  await navigator.clipboard.writeText(button.dataset.copy);
  const text = button.textContent;
  button.textContent = "Copied";
  setTimeout(() => { button.textContent = text; }, 1500);
});

// --- forms that are sent when something is chosen

for (const field of document.querySelectorAll("[data-submit]")) field.addEventListener("change", () => field.form.requestSubmit());

// --- a search under way can be stopped: the server ends what nobody waits for

for (const stop of document.querySelectorAll("[data-stop]")) {
  stop.form.addEventListener("submit", () => { stop.hidden = false; });
  stop.addEventListener("click", () => {
    window.stop();
    stop.hidden = true;
  });
  addEventListener("pageshow", () => { stop.hidden = true; });  // by the browser's way back
}

// --- following a topic: new rows on top

const MOST_ROWS = 500;
for (const button of document.querySelectorAll("[data-tail]")) {
  const state = document.getElementById("tail-state");
  const rows = document.getElementById("rows");
  let source = null;
  let seen = 0;
  const say = (text) => { state.hidden = false; state.textContent = text; };
  button.addEventListener("click", () => {
    const follows = source !== null;
    button.setAttribute("aria-pressed", String(!follows));
    button.textContent = follows ? "Follow" : "Stop";
    if (follows) {
      source.close();
      source = null;
      say(`Stopped after ${seen} new messages.`);
      return;
    }
    say("Following: new messages appear on top.");
    source = new EventSource(button.dataset.tail);
    source.addEventListener("rows", (event) => {
      const { rows: html, more } = JSON.parse(event.data);
      seen += html.length + more;
      rows.querySelector("tr.none")?.remove();
      for (const old of rows.querySelectorAll(".fresh")) old.classList.remove("fresh");
      for (const each of html) {
        rows.insertAdjacentHTML("afterbegin", each);
        rows.firstElementChild.classList.add("fresh");
      }
      while (rows.children.length > MOST_ROWS) rows.lastElementChild.remove();
      say(`Following: ${seen} new messages.` + (more ? ` ${more} went by too fast to be shown.` : ""));
    });
    source.addEventListener("trouble", (event) => say(JSON.parse(event.data).text));
    source.addEventListener("error", () => say("The console does not answer; trying again."));
  });
}
