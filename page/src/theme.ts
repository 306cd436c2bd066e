// Light or dark: the system's choice, unless one was made here.
import { useEffect, useState } from "preact/hooks";

const CHANGED = "strata-theme";
const KEY = "strata.theme";

function isDark(): boolean {
  const chosen = document.documentElement.dataset["theme"];
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

export function turnTheme(): void {
  const next = isDark() ? "light" : "dark";
  document.documentElement.dataset["theme"] = next;
  try {
    localStorage.setItem(KEY, next);
  } catch {
    // Not kept: the choice lasts as long as the page.
  }
  window.dispatchEvent(new Event(CHANGED));
}

export function keptTheme(): void {
  try {
    const theme = localStorage.getItem(KEY);
    if (theme === "light" || theme === "dark") document.documentElement.dataset["theme"] = theme;
  } catch {
    // The system's.
  }
}

export function useDark(): boolean {
  const [dark, setDark] = useState(isDark);
  useEffect(() => {
    const update = () => setDark(isDark());
    const system = matchMedia("(prefers-color-scheme: dark)");
    window.addEventListener(CHANGED, update);
    system.addEventListener("change", update);
    return () => {
      window.removeEventListener(CHANGED, update);
      system.removeEventListener("change", update);
    };
  }, []);
  return dark;
}
