// Why: the reasons that keep most, what each costs, and what to do about it.
import { call, nanoseconds, type Schemas } from "../api/client";
import { covered, shown } from "../api/stream";
import { bytes, dayTime, filterOf, percent, plural } from "../format";
import { useLoad } from "../hooks";
import type { View } from "../main";
import { changed, go, link, type Place } from "../router";
import { useDark } from "../theme";
import { CoveredNote, Loading, Notice, Problem, Select } from "../ui/bits";
import { colour, keptAs } from "../ui/colour";
import { Signs, Trees } from "../ui/why";
import { ClassName } from "./flow-columns";

type Kind = Schemas["Reasons"]["kinds"][number];

export function WhyView({ place, session }: View) {
  const log = place.query.get("log") ?? session.logs[0]?.id ?? "";
  const from = place.query.get("from") ?? "";
  const to = place.query.get("to") ?? "";
  const reasons = useLoad(
    async (signal) => (log === "" ? null : call("reasons", { path: { log }, query: { from, to, limit: 50 }, signal })),
    [log, from, to],
  );
  if (session.logs.length === 0) {
    return <Notice kind="info">No log is open: start strata serve with the directory of a log.</Notice>;
  }
  const data = reasons.data;
  return (
    <>
      <h1>Why packets were kept</h1>
      {session.logs.length > 1 && (
        <Select
          label="Log"
          is={log}
          of={session.logs.map(({ id, path }) => [id, path] as const)}
          choose={(log) => go(changed(place, { log }))}
        />
      )}
      <Loading when={reasons.loading && !data}>Reading the log …</Loading>
      <Problem of={reasons.problem} again={reasons.again} />
      {data && shown(covered(data), (data) => <Reasons of={data} log={log} place={place} session={session} />)}
      {data && <CoveredNote of={data.covered} />}
    </>
  );
}

interface ReasonsProps {
  of: Schemas["Reasons"];
  log: string;
  place: Place;
  session: View["session"];
}

function Reasons({ of: data, log, place, session }: ReasonsProps) {
  const most = Math.max(1, ...data.kinds.map((kind) => kind.kept_bytes));
  const listed = (what: "packets" | "kept_bytes") => data.kinds.reduce((sum, kind) => sum + kind[what], 0);
  return (
    <>
      <p>
        {plural(data.total.reasons, "reason")} kept {bytes(data.total.kept_bytes)} in{" "}
        {plural(data.total.packets, "packet")}. Reasons of one kind are listed together; those that keep most come first.
      </p>
      {data.kinds.length === 0 && <p>No packet is in this log yet.</p>}
      <ol class="reasons">
        {data.kinds.map((kind, index) => (
          <One
            key={index}
            kind={kind}
            log={log}
            place={place}
            most={most}
            whole={data.total.kept_bytes}
            mayChange={session.recorders.length > 0 && session.roles.includes("change") && !session.read_only}
          />
        ))}
      </ol>
      {data.kinds_in_all > data.kinds.length && (
        <p>
          And {plural(data.kinds_in_all - data.kinds.length, "more kind")}, which kept{" "}
          {bytes(data.total.kept_bytes - listed("kept_bytes"))} in {plural(data.total.packets - listed("packets"), "packet")}.
        </p>
      )}
    </>
  );
}

interface OneProps {
  kind: Kind;
  log: string;
  place: Place;
  most: number;
  whole: number;
  mayChange: boolean;
}

function One({ kind, log, place, most, whole, mayChange }: OneProps) {
  const dark = useDark();
  const reason = kind.largest;
  const share = whole > 0 ? kind.kept_bytes / whole : 0;
  const packets = link("/search", {
    log,
    reason: reason.reason,
    from: place.query.get("from"),
    to: place.query.get("to"),
  });
  return (
    <li class="card reason">
      <div class="reason-bar" aria-hidden="true">
        <i
          style={{
            width: `${(kind.kept_bytes / most) * 100}%`,
            background: colour(kind.class, kind.granularity, dark),
          }}
        />
      </div>
      <p class="reason-head">
        <b>{bytes(kind.kept_bytes)}</b> ({percent(share)}) in {plural(kind.packets, "packet")}, kept{" "}
        {keptAs(kind.granularity)} · <ClassName of={kind.class} />
        {kind.reasons > 1 && <small> {plural(kind.reasons, "reason")}</small>}
      </p>
      <p>{kind.words}</p>
      {kind.reasons > 1 && (
        <p>
          The largest of them kept {bytes(reason.kept_bytes)} in {plural(reason.packets, "packet")}:
        </p>
      )}
      <p>
        <small>
          Example: {reason.first_flow}
          {reason.score !== null && <>; mean share of its class in the trees: {percent(reason.score)}</>}
        </small>
      </p>
      <Signs signs={reason.signs} />
      <p class="actions">
        <a class="button" href={packets}>
          {kind.reasons > 1 ? "Show the flows of the largest" : "Show its flows"}
        </a>
        <Policy reason={reason} log={log} mayChange={mayChange} />
        {reason.flow !== null && (
          <a class="button" href={link("/flow", { log, flow: reason.flow, label: "1" })}>
            Label this example flow …
          </a>
        )}
      </p>
      <details>
        <summary>Conditions</summary>
        <p>
          First at {dayTime(nanoseconds(reason.first))}, in the example flow
        </p>
        {reason.trees.length > 0 ? (
          <Trees trees={reason.trees} more={reason.more_trees} from={null} />
        ) : (
          <p>
            <code>{reason.reason}</code>: no tree decided.
          </p>
        )}
      </details>
    </li>
  );
}

/** A policy knows addresses, protocols and ports, no reasons: from here it is one for the example flow. */
function Policy(props: { reason: Kind["largest"]; log: string; mayChange: boolean }) {
  const { flow } = props.reason;
  if (!props.mayChange || flow === null || flow.startsWith("e_")) return null;
  const match = filterOf(flow);
  if (match === "") return null;
  const to = (action: string) => link("/policies", { match, action, log: props.log, example: "1" });
  return (
    <>
      <a class="button" href={to("header")} title={match}>
        Keep only headers of this example flow …
      </a>
      <a class="button" href={to("full")} title={match}>
        Keep this example flow whole …
      </a>
    </>
  );
}
