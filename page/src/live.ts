// What recorders do now: one stream of server-sent events for the whole page.
import { useEffect, useState } from "preact/hooks";
import { address, call, type Event, onLogin, type RecorderTick, type Tick } from "./api/client";

/** Points kept of each recorder: 15 minutes. */
export const POINTS = 900;
/** Events kept of each. */
const EVENTS = 200;
/** Wait before the stream is opened again, if the browser does not do it. */
const AGAIN_MS = 2000;

export interface Live {
  /** Whether ticks arrive. */
  connected: boolean;
  tick: Tick | null;
  /** Ticks by recorder, oldest first. */
  past: Map<string, { at: number; tick: RecorderTick }[]>;
  /** Events by recorder, oldest first: another array when there are more. */
  events: Map<string, Event[]>;
}

const state: Live = { connected: false, tick: null, past: new Map(), events: new Map() };
const listeners = new Set<() => void>();
let source: EventSource | null = null;
let timer: ReturnType<typeof setTimeout> | undefined;

function tell(): void {
  // A hidden page draws nothing.
  if (document.hidden) return;
  for (const listener of listeners) listener();
}

function take(tick: Tick): void {
  state.connected = true;
  state.tick = tick;
  for (const recorder of tick.recorders) {
    let past = state.past.get(recorder.id);
    if (!past) state.past.set(recorder.id, (past = []));
    past.push({ at: tick.at, tick: recorder });
    if (past.length > POINTS) past.splice(0, past.length - POINTS);
    if (recorder.events.length > 0) {
      state.events.set(recorder.id, [...(state.events.get(recorder.id) ?? []), ...recorder.events].slice(-EVENTS));
    }
  }
  tell();
}

function open(): void {
  clearTimeout(timer);
  source = new EventSource(address("live"));
  source.addEventListener("tick", (event) => take(JSON.parse((event as MessageEvent).data as string) as Tick));
  source.addEventListener("login", () => {
    close();
    // Says who may look; asks for the login where it has expired.
    void call("session").catch(() => undefined);
  });
  source.onerror = () => {
    state.connected = false;
    tell();
    if (source?.readyState === EventSource.CLOSED) {
      // Refused rather than interrupted: the browser would not try again.
      source = null;
      timer = setTimeout(open, AGAIN_MS);
      void call("session").catch(() => undefined);
    }
  };
}

export function close(): void {
  clearTimeout(timer);
  source?.close();
  source = null;
  state.connected = false;
  tell();
}

export function start(needLogin: () => void): void {
  onLogin(() => {
    close();
    needLogin();
  });
  if (!source) open();
}

document.addEventListener("visibilitychange", tell);

/** The latest tick, once a second. */
export function useLive(): Live {
  const [, setTurn] = useState(0);
  useEffect(() => {
    const listener = () => setTurn((turn) => turn + 1);
    listeners.add(listener);
    return () => {
      listeners.delete(listener);
    };
  }, []);
  return state;
}

/** Whether ticks arrive, and have arrived; told when that changes. */
export function useConnection(): { connected: boolean; ever: boolean } {
  const [is, setIs] = useState({ connected: state.connected, ever: state.tick !== null });
  useEffect(() => {
    const listener = () =>
      setIs((was) => {
        const now = { connected: state.connected, ever: state.tick !== null };
        return was.connected === now.connected && was.ever === now.ever ? was : now;
      });
    listener();
    listeners.add(listener);
    return () => {
      listeners.delete(listener);
    };
  }, []);
  return is;
}
