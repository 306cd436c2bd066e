// Loading, and what the browser keeps between visits.
import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { Refused } from "./api/client";

export interface Loaded<T> {
  data: T | null;
  problem: Refused | null;
  loading: boolean;
  again: () => void;
}

/**
 * Loads when one of `on` changes, and gives up what is under way. `about` is what the data is of: while it
 * is the same the data before stays shown, of something else it does not.
 */
export function useLoad<T>(
  load: (signal: AbortSignal) => Promise<T>,
  on: unknown[],
  about: unknown[] = on,
): Loaded<T> {
  const of = JSON.stringify(about);
  const [state, setState] = useState<Omit<Loaded<T>, "again"> & { of: string }>({ ...NOTHING_YET, of });
  const [turn, setTurn] = useState(0);
  useEffect(() => {
    const control = new AbortController();
    setState((before) => ({ ...(before.of === of ? before : NOTHING_YET), loading: true, of }));
    load(control.signal).then(
      (data) => {
        if (!control.signal.aborted) setState({ data, problem: null, loading: false, of });
      },
      (error: unknown) => {
        if (control.signal.aborted) return;
        setState((before) => ({ data: before.data, problem: asRefused(error), loading: false, of }));
      },
    );
    return () => control.abort();
  }, [...on, turn]);
  const again = useCallback(() => setTurn((turn) => turn + 1), []);
  // Drawn once before the effect has run.
  const { data, problem, loading } = state.of === of ? state : NOTHING_YET;
  return { data, problem, loading, again };
}

const NOTHING_YET = { data: null, problem: null, loading: true };

export function asRefused(error: unknown): Refused {
  if (error instanceof Refused) return error;
  const text = error instanceof Error ? error.message : String(error);
  return new Refused(0, { error: text, code: "internal" });
}

/** A value once it has not changed for a while. */
export function useSettled<T>(value: T, milliseconds: number): T {
  const [settled, setSettled] = useState(value);
  useEffect(() => {
    const timer = setTimeout(() => setSettled(value), milliseconds);
    return () => clearTimeout(timer);
  }, [value, milliseconds]);
  return settled;
}

/** A choice that this browser remembers, where it may. */
export function useKept<T>(name: string, first: T): [T, (value: T) => void] {
  const key = `strata.${name}`;
  const [value, setValue] = useState<T>(() => {
    try {
      const kept = localStorage.getItem(key);
      return kept === null ? first : (JSON.parse(kept) as T);
    } catch {
      return first;
    }
  });
  const keep = useCallback(
    (next: T) => {
      setValue(next);
      try {
        localStorage.setItem(key, JSON.stringify(next));
      } catch {
        // Not kept: the choice lasts as long as the page.
      }
    },
    [key],
  );
  return [value, keep];
}

/** Whether the browser's window fulfils a media query. */
export function useMedia(query: string): boolean {
  const [fulfilled, setFulfilled] = useState(() => matchMedia(query).matches);
  useEffect(() => {
    const list = matchMedia(query);
    const update = () => setFulfilled(list.matches);
    list.addEventListener("change", update);
    return () => list.removeEventListener("change", update);
  }, [query]);
  return fulfilled;
}

/** Calls the newest function, from a place that keeps the first. */
export function useLatest<A extends unknown[], R>(act: (...values: A) => R): (...values: A) => R {
  const latest = useRef(act);
  latest.current = act;
  return useCallback((...values: A) => latest.current(...values), []);
}
