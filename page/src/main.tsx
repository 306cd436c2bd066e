// The page: who is looking, where one is, and the view of that place.
import { render } from "preact";
import { useCallback, useEffect, useState } from "preact/hooks";
import "uplot/dist/uPlot.min.css";
import "./style.css";
import { call, type Refused, type Session } from "./api/client";
import { asRefused } from "./hooks";
import { close, start, useConnection } from "./live";
import { followLinks, go, type Place, usePlace } from "./router";
import { keptTheme, turnTheme } from "./theme";
import { Notice } from "./ui/bits";
import { Ask } from "./views/ask";
import { Fleet } from "./views/fleet";
import { FlowView } from "./views/flow";
import { Login } from "./views/login";
import { Now } from "./views/now";
import { PacketView } from "./views/packet";
import { Policies } from "./views/policies";
import { Search } from "./views/search";
import { Storage } from "./views/storage";
import { WhyView } from "./views/why";

export interface View {
  place: Place;
  session: Session;
}

const VIEWS = [
  { path: "/now", name: "Now", view: Now },
  { path: "/search", name: "Search", view: Search },
  { path: "/why", name: "Why", view: WhyView },
  { path: "/policies", name: "Policies", view: Policies },
  { path: "/ask", name: "Ask", view: Ask },
  { path: "/fleet", name: "Fleet", view: Fleet },
  { path: "/storage", name: "Storage", view: Storage },
];
/** Views that are reached from another. */
const INNER = [
  { path: "/flow", name: "Flow", view: FlowView, in: "/search" },
  { path: "/packet", name: "Packet", view: PacketView, in: "/search" },
];

/** What a server of this kind is for. */
function homeOf({ recorders, logs, fleet }: Session): string {
  if (recorders.length > 0) return "/now";
  return logs.length === 0 && fleet !== null ? "/fleet" : "/search";
}

function App() {
  const place = usePlace();
  const [session, setSession] = useState<Session | null>(null);
  const [login, setLogin] = useState(false);
  const [problem, setProblem] = useState<Refused | null>(null);

  const begin = useCallback(() => {
    call("session").then(
      (session) => {
        setSession(session);
        setLogin(false);
        setProblem(null);
        start(() => setLogin(true));
      },
      (error: unknown) => {
        const refused = asRefused(error);
        if (refused.code === "login") setLogin(true);
        else setProblem(refused);
      },
    );
  }, []);
  useEffect(begin, [begin]);

  const home = session ? homeOf(session) : "/now";
  const path = place.path === "/" ? home : place.path;
  const inner = INNER.find((view) => view.path === path);
  const view = inner ?? VIEWS.find((view) => view.path === path);
  useEffect(() => {
    document.title = view ? `${view.name} – Strata` : "Strata";
  }, [view]);
  useEffect(() => {
    if (session && place.path === "/") go(home, true);
  }, [session, place.path, home]);

  if (login) return <Login done={begin} />;
  if (problem) {
    return (
      <main>
        <Notice kind="bad">
          {problem.message}{" "}
          <button type="button" onClick={begin}>
            Try again
          </button>
        </Notice>
      </main>
    );
  }
  if (!session) return <main aria-busy="true" />;
  const Shown = view?.view;
  return (
    <>
      <a class="skip" href="#main">
        Skip to the view
      </a>
      <header class="top">
        <a class="brand" href={home}>
          Strata
        </a>
        <nav aria-label="Views">
          {VIEWS.filter(({ path }) => path !== "/fleet" || session.fleet !== null).map(({ path, name }) => (
            <a key={path} href={path} aria-current={view && (inner?.in ?? view.path) === path ? "page" : undefined}>
              {name}
            </a>
          ))}
        </nav>
        <Side session={session} />
      </header>
      <main id="main" tabIndex={-1}>
        {session.read_only && <p class="quiet">Read-only: no changes can be made here.</p>}
        {Shown ? (
          <Shown key={path} place={place} session={session} />
        ) : (
          <Notice kind="bad">There is no view {place.path}.</Notice>
        )}
      </main>
    </>
  );
}

/** The connection, the user, the theme. */
function Side({ session }: { session: Session }) {
  const { connected, ever } = useConnection();
  const logout = () => {
    close();
    void call("logout").finally(() => location.assign("/"));
  };
  const state = session.recorders.length === 0 ? "" : connected ? "live" : ever ? "reconnecting …" : "connecting …";
  return (
    <div class="side">
      {state && (
        <span class={connected ? "dot good" : ever ? "dot bad" : "dot"} role="status">
          {state}
        </span>
      )}
      {session.login === "token" && (
        <button type="button" class="plain" onClick={logout}>
          Log out
        </button>
      )}
      <button type="button" class="plain" aria-label="Light or dark theme" title="Light or dark theme" onClick={turnTheme}>
        ◐
      </button>
    </div>
  );
}

/** A menu closes when one is done with it: a click elsewhere, or Escape. */
function closeMenus(): void {
  const close = (but: Element | null) => {
    for (const menu of document.querySelectorAll<HTMLDetailsElement>("details.menu[open]")) {
      if (menu !== but) menu.open = false;
    }
  };
  document.addEventListener("click", (event) => close((event.target as Element).closest("details.menu")));
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") close(null);
  });
}

keptTheme();
closeMenus();
followLinks();
const root = document.getElementById("page");
if (root) render(<App />, root);
