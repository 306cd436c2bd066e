// Policies: what they match, how often they did, a new one tried on the log before it is added.
import { useEffect, useState } from "preact/hooks";
import { call, type Changed, type Policy, type Schemas } from "../api/client";
import { covered, shown } from "../api/stream";
import { bytes, count, plural } from "../format";
import { asRefused, useLoad, useSettled } from "../hooks";
import type { View } from "../main";
import { changed, go, type Place } from "../router";
import { Card, Choice, CoveredNote, Done, Labelled, Loading, Notice, Problem, Rows, Select } from "../ui/bits";
import { FilterInput } from "../ui/filter";

const ACTIONS = [
  ["header", "keep only headers"],
  ["full", "keep whole"],
  ["partial 128", "keep headers and 128 bytes"],
  ["drop", "keep nothing"],
  ["classify", "let the model decide"],
] as const;
/** How often hits are counted anew. */
const HITS_MS = 5000;

export function Policies({ place, session }: View) {
  const recorder = place.query.get("recorder") ?? session.recorders[0]?.id ?? "";
  const policies = useLoad<Policy[]>(
    async (signal) => (recorder === "" ? [] : call("policies", { path: { recorder }, signal })),
    [recorder],
  );
  const [done, setDone] = useState<Changed | null>(null);
  const [problem, setProblem] = useState<Error | null>(null);
  const { again } = policies;
  useEffect(() => {
    const timer = setInterval(() => {
      if (!document.hidden) again();
    }, HITS_MS);
    return () => clearInterval(timer);
  }, [again]);
  if (session.recorders.length === 0) {
    return (
      <>
        <h1>Policies</h1>
        <Notice kind="info">
          No running recording is connected. Policies belong to a recording: start strata serve with --socket.
        </Notice>
      </>
    );
  }
  const mayChange = session.roles.includes("change") && !session.read_only;
  const log = session.recorders.find(({ id }) => id === recorder)?.log ?? place.query.get("log");
  const remove = async (policy: Policy) => {
    try {
      setDone(await call("removePolicy", { path: { recorder, policy: policy.id } }));
      setProblem(null);
    } catch (error) {
      setProblem(asRefused(error));
    }
    again();
  };
  return (
    <>
      <h1>Policies</h1>
      <p>A policy sets the granularity of certain packets, regardless of their class. If several policies match, the policy with the highest priority decides.</p>
      {session.recorders.length > 1 && (
        <Choice
          label="Recording"
          of={session.recorders.map(({ id, socket }) => [id, socket] as const)}
          is={recorder}
          choose={(recorder) => go(changed(place, { recorder }))}
        />
      )}
      {mayChange && (
        <NewPolicy
          key={`${recorder} ${place.query.get("match") ?? ""} ${place.query.get("action") ?? ""}`}
          place={place}
          recorder={recorder}
          log={log ?? null}
          added={(change) => {
            setDone(change);
            again();
          }}
        />
      )}
      <Done
        key={done?.what}
        of={done}
        undone={() => {
          setDone(null);
          again();
        }}
      />
      <Problem of={problem} />
      <Card title="In force">
        <Problem of={policies.problem} again={again} />
        <Loading when={policies.loading && !policies.data} />
        {policies.data?.length === 0 && <p>None: the mode decides for every packet.</p>}
        {policies.data && policies.data.length > 0 && (
          <Rows
            label="Policies"
            head={[
              "Match",
              "Action",
              { text: "Priority", number: true },
              { text: "Packets", number: true },
              { text: "Bytes", number: true },
              "Origin",
              "",
            ]}
          >
            {policies.data.map((policy) => (
              <tr key={policy.id}>
                <th scope="row">
                  <code>{policy.match}</code>
                  {policy.interface && <small> on {policy.interface}</small>}
                  {policy.protect && <small> never deleted</small>}
                </th>
                <td>{policy.action}</td>
                <td class="number">{policy.priority}</td>
                <td class="number">{count(policy.packets)}</td>
                <td class="number">{bytes(policy.bytes)}</td>
                <td>{policy.origin === "run_time" ? "added" : "configuration"}</td>
                <td>
                  {mayChange && policy.origin === "run_time" && (
                    <button type="button" aria-label={`Remove policy ${policy.id}`} onClick={() => remove(policy)}>
                      Remove
                    </button>
                  )}
                </td>
              </tr>
            ))}
          </Rows>
        )}
      </Card>
    </>
  );
}

interface NewProps {
  place: Place;
  recorder: string;
  log: string | null;
  added: (change: Changed) => void;
}

function NewPolicy(props: NewProps) {
  const { query } = props.place;
  const [match, setMatch] = useState(query.get("match") ?? "");
  const [action, setAction] = useState(query.get("action") ?? "header");
  const [priority, setPriority] = useState("100");
  const [protect, setProtect] = useState(false);
  const [why, setWhy] = useState("");
  const [problem, setProblem] = useState<Error | null>(null);
  const check = useCheck(match, action);
  const tried = useTried(match, action, props.log, check?.error === null);
  const add = async (event: Event) => {
    event.preventDefault();
    try {
      const body = { match: match.trim(), action, priority: Number(priority), protect, why };
      props.added(await call("addPolicy", { path: { recorder: props.recorder }, body }));
      setProblem(null);
      setMatch("");
      setWhy("");
    } catch (error) {
      setProblem(asRefused(error));
    }
  };
  const wrong = check?.error ?? null;
  const actions = ACTIONS.some(([value]) => value === action) ? ACTIONS : [...ACTIONS, [action, action] as const];
  return (
    <Card title="New policy">
      <form class="policy" onSubmit={add}>
        <FilterInput
          label="Packets that match"
          value={match}
          change={setMatch}
          problem={match.trim() === "" || wrong?.field === "action" ? null : wrong}
          unchecked
          placeholder="host 10.0.0.9 and tcp port 443"
        />
        {query.has("example") && match === query.get("match") && (
          <Notice kind="info">
            This filter matches only the example flow, not every packet kept for the same reason: policies match
            addresses, protocols and ports. Shorten it to match more.
          </Notice>
        )}
        <div class="row">
          <Select label="Action" is={action} of={actions} choose={setAction} />
          <Labelled label="Priority">
            <input
              type="number"
              min={0}
              max={65535}
              required
              value={priority}
              onInput={(event) => setPriority(event.currentTarget.value)}
            />
          </Labelled>
          <label class="check">
            <input type="checkbox" checked={protect} onChange={() => setProtect(!protect)} /> never delete
          </label>
          <Labelled label="Why">
            <input maxLength={200} value={why} onInput={(event) => setWhy(event.currentTarget.value)} />
          </Labelled>
          <button type="submit" class="main" disabled={match.trim() === "" || wrong !== null}>
            Add
          </button>
        </div>
        {wrong?.field === "action" && <Notice kind="bad">{wrong.error}</Notice>}
        <Problem of={problem} />
        {tried && (
          <div class="tried" role="status">
            {tried === "looking" ? (
              <p class="quiet">Searching the log for packets that match …</p>
            ) : (
              <>
                {shown(covered(tried), (tried) => (
                  <>
                    <p>
                      In this log, the policy would have matched <b>{plural(tried.packets, "packet")}</b> of{" "}
                      {plural(tried.flows, "flow")}: {bytes(tried.wire_bytes)} on the wire, {bytes(tried.kept_bytes)} kept.
                    </p>
                    {tried.would && <Would of={tried.would} packets={tried.packets} />}
                  </>
                ))}
                <CoveredNote of={tried.covered} />
              </>
            )}
          </div>
        )}
      </form>
    </Card>
  );
}

/** The effect of the policy: an action that keeps less of a packet may keep more of them. */
function Would(props: { of: NonNullable<Matched["would"]>; packets: number }) {
  const { packets, kept_bytes, now_bytes, exact } = props.of;
  const sampled = packets > props.packets;
  const more = kept_bytes > now_bytes;
  const text = (
    <>
      With this policy {exact ? "" : "about "}
      <b>{bytes(kept_bytes)}</b> of them would have been kept{more ? ", more than without it" : ""}.
      {sampled &&
        ` They are a sample of about ${plural(packets, "packet")}: a policy keeps all packets that match, including those that the mode samples out.`}
    </>
  );
  return more ? <Notice kind="warn">{text}</Notice> : <p>{text}</p>;
}

/** Whether it is valid, as it is typed. */
function useCheck(match: string, action: string): Schemas["PolicyCheck"] | null {
  const text = useSettled(`${match}\n${action}`, 180);
  const [check, setCheck] = useState<{ of: string; found: Schemas["PolicyCheck"] } | null>(null);
  useEffect(() => {
    const [match = "", action = ""] = text.split("\n");
    if (match.trim() === "") return;
    const control = new AbortController();
    call("checkPolicy", { body: { match, action, log: null }, signal: control.signal }).then(
      (found) => setCheck({ of: text, found }),
      () => undefined,
    );
    return () => control.abort();
  }, [text]);
  return check && check.of === `${match}\n${action}` ? check.found : null;
}

type Matched = NonNullable<Schemas["PolicyCheck"]["matched"]>;

/** What a valid one would have matched, once typing has stopped. */
function useTried(match: string, action: string, log: string | null, valid: boolean): Matched | "looking" | null {
  const text = useSettled(valid && log !== null ? `${match}\n${action}` : "", 700);
  const [found, setFound] = useState<{ of: string; matched: Matched | null } | null>(null);
  useEffect(() => {
    const [match = "", action = ""] = text.split("\n");
    if (match.trim() === "" || log === null) return;
    const control = new AbortController();
    call("checkPolicy", { body: { match, action, log }, signal: control.signal }).then(
      ({ matched }) => setFound({ of: text, matched }),
      () => undefined,
    );
    return () => control.abort();
  }, [text, log]);
  if (text === "" || text !== `${match}\n${action}`) return null;
  return found?.of === text ? found.matched : "looking";
}
