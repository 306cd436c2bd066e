// Every view is a URL: a path and what is chosen in it.
import { useEffect, useState } from "preact/hooks";

export interface Place {
  path: string;
  query: URLSearchParams;
}

function here(): Place {
  return { path: location.pathname, query: new URLSearchParams(location.search) };
}

const CHANGED = "strata-place";

export function go(to: string, replace = false): void {
  if (to === location.pathname + location.search) return;
  if (replace) history.replaceState(null, "", to);
  else history.pushState(null, "", to);
  window.dispatchEvent(new Event(CHANGED));
}

/** The same view with some of its choices changed; null takes one away. */
export function changed(place: Place, changes: Record<string, string | null>): string {
  const query = new URLSearchParams(place.query);
  for (const [key, value] of Object.entries(changes)) {
    if (value === null || value === "") query.delete(key);
    else query.set(key, value);
  }
  return link(place.path, query);
}

export function link(path: string, query: URLSearchParams | Record<string, string | null | undefined>): string {
  const all =
    query instanceof URLSearchParams
      ? query
      : new URLSearchParams(
          Object.entries(query).filter((entry): entry is [string, string] => !!entry[1]),
        );
  const text = all.toString();
  return text === "" ? path : `${path}?${text}`;
}

export function usePlace(): Place {
  const [place, setPlace] = useState(here);
  useEffect(() => {
    const update = () => setPlace(here());
    window.addEventListener("popstate", update);
    window.addEventListener(CHANGED, update);
    return () => {
      window.removeEventListener("popstate", update);
      window.removeEventListener(CHANGED, update);
    };
  }, []);
  return place;
}

/** Follows links of this page without loading it again. */
export function followLinks(): void {
  document.addEventListener("click", (event) => {
    if (event.defaultPrevented || event.button !== 0) return;
    if (event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
    const anchor = (event.target as Element).closest("a");
    if (!anchor || anchor.target || anchor.hash || anchor.hasAttribute("download")) return;
    if (anchor.origin !== location.origin || anchor.pathname.startsWith("/api/")) return;
    event.preventDefault();
    go(anchor.pathname + anchor.search);
    if (anchor.pathname !== location.pathname) window.scrollTo(0, 0);
  });
}
