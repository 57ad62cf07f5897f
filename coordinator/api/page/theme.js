// Light or dark, before anything is drawn. Without a choice of the reader the system's holds.
"use strict";
{
  let chosen = null;
  try {
    chosen = localStorage.getItem("paceline.theme");
  } catch {
    // Browsers may refuse to keep anything; then nothing was chosen.
  }
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
}
