// Before anything is drawn: the colours that this reader chose, else the system's.
"use strict";
document.documentElement.dataset.script = "on";  // what works only with a script is shown
try {
  const chosen = localStorage.getItem("theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch {
  // a browser that keeps nothing shows the system's
}
