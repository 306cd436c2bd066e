// The fleet of a controller: its hosts, the progress of its policies, and whether all exported packets arrived.
import { useEffect, useState } from "preact/hooks";
import { call, nanoseconds, type Schemas } from "../api/client";
import { count, dayTime, duration, grouped, percent, plural } from "../format";
import { useLoad } from "../hooks";
import type { View } from "../main";
import { changed, go, type Place } from "../router";
import { Big, Card, Choice, Loading, Notice, Problem, Rows } from "../ui/bits";

type FleetOf = Schemas["Fleet"];
type Host = Schemas["FleetHost"];
type Destination = Schemas["FleetDestination"];

/** How often the controller is asked: agents and collectors report every few seconds. */
const ASKED_MS = 3000;

export function Fleet({ place, session }: View) {
  const { fleet: controller } = session;
  const fleet = useLoad<FleetOf | null>(
    async (signal) => (controller === null ? null : call("fleet", { signal })),
    [controller],
  );
  const { again, loading } = fleet;
  useEffect(() => {
    // A slow answer is waited for: asking again would give it up.
    const timer = setInterval(() => {
      if (!document.hidden && !loading) again();
    }, ASKED_MS);
    return () => clearInterval(timer);
  }, [again, loading]);
  if (controller === null) {
    return (
      <>
        <h1>Fleet</h1>
        <Notice kind="info">
          No controller is connected: start strata serve with --fleet and the directory of the controller.
        </Notice>
      </>
    );
  }
  const known = fleet.data;
  return (
    <>
      <h1>Fleet</h1>
      <Problem of={fleet.problem} again={again} />
      {fleet.problem && known && (
        <Notice kind="warn">What follows is from {dayTime(nanoseconds(known.at))}.</Notice>
      )}
      <Loading when={fleet.loading && !known} />
      {known && (
        <>
          <Figures of={known} />
          {known.destinations.map((one) => (
            <Sums key={one.name} of={one} />
          ))}
          <Hosts of={known} place={place} />
          <Events of={known} />
        </>
      )}
    </>
  );
}

function Figures({ of: { hosts, rollout } }: { of: FleetOf }) {
  const due = hosts.all - hosts.revoked;
  const quiet = hosts.silent + hosts.never;
  return (
    <div class="figures">
      <Big value={`${count(hosts.up)} of ${count(due)}`} of="agents report" kind={quiet > 0 ? "bad" : "good"} />
      {rollout.version === 0 ? (
        <Big value="none" of="of the policies applied yet" kind="warn" />
      ) : (
        <Big
          value={`version ${rollout.version}`}
          of={`of the policies, run by ${count(due - hosts.behind)} of ${plural(due, "agent")}${
            rollout.since === null ? "" : `, applied ${dayTime(nanoseconds(rollout.since))}`
          }`}
          kind={hosts.behind > 0 ? "warn" : "good"}
        />
      )}
      {hosts.problems > 0 && <Big value={plural(hosts.problems, "agent")} of="with a problem" kind="bad" />}
      {hosts.clocks_off > 0 && (
        <Big value={plural(hosts.clocks_off, "clock")} of="off by a second or more" kind="warn" />
      )}
      {hosts.revoked > 0 && <Big value={plural(hosts.revoked, "agent")} of="revoked" />}
    </div>
  );
}

const ago = (seconds: number | null) => (seconds === null ? "never" : seconds === 0 ? "now" : `${duration(seconds)} ago`);

/** Packets exported to a destination beside those received, and whether the sums close. */
function Sums({ of }: { of: Destination }) {
  const { collector, sum } = of;
  const counted = grouped(sum.exported);
  const parts: [string, number][] = [
    ["received", sum.received],
    ["lost", sum.lost],
    ["from before this run of the collector", sum.before],
  ];
  const said = parts.filter(([, packets], index) => index === 0 || packets > 0);
  const text = said.map(([name, packets]) => `${grouped(packets)} ${name}`).join(" + ");
  return (
    <Card title={`Exported to ${of.name}`}>
      {of.closes === true && (
        <Notice kind={sum.lost > 0 ? "warn" : "good"}>
          The sum closes: {counted} exported = {text}.
        </Notice>
      )}
      {of.closes === false && (
        <Notice kind="bad">
          The sum does not close: {counted} exported, {text}, and {plural(sum.missing, "packet")} of which the collector
          does not know: sent since its last report, in sessions that it has not heard of, or at the end of one that was
          broken off.
        </Notice>
      )}
      {of.closes === null && (
        <Notice kind="warn">Whether the sum closes is unknown, since a part of it is: see the reasons below.</Notice>
      )}
      {of.doubts.length > 0 && (
        <ul>
          {of.doubts.map((doubt) => (
            <li key={doubt}>{doubt}</li>
          ))}
        </ul>
      )}
      {collector && <Collector of={collector} />}
      {of.sums.length > 0 && (
        <Rows
          label={`Packets exported to ${of.name}`}
          head={[
            "Interface",
            { text: "Identity", number: true },
            { text: "Exported", number: true },
            { text: "Received", number: true },
            { text: "Lost", number: true },
            { text: "Before", number: true },
            { text: "Missing", number: true },
          ]}
        >
          {of.sums.map((one) => (
            <SumRow key={one.identity} of={one} name={one.name || "not known"} />
          ))}
          {(of.sums.length > 1 || of.sums_left_out > 0) && <SumRow of={sum} name="sum" />}
        </Rows>
      )}
      {of.sums_left_out > 0 && (
        <p class="quiet">
          {plural(of.sums_left_out, "further interface")}, of which the collector lacks less, only in the sum.
        </p>
      )}
    </Card>
  );
}

function SumRow({ of, name }: { of: Schemas["FleetSum"]; name: string }) {
  return (
    <tr>
      <th scope="row">{name}</th>
      <td class="number">{of.identity === 0 ? "" : of.identity}</td>
      <td class="number">{grouped(of.exported)}</td>
      <td class="number">{grouped(of.received)}</td>
      <td class={of.lost > 0 ? "number bad" : "number"}>{grouped(of.lost)}</td>
      <td class="number">{grouped(of.before)}</td>
      <td class={of.missing > 0 ? "number bad" : "number"}>{grouped(of.missing)}</td>
    </tr>
  );
}

function Collector({ of }: { of: Schemas["FleetCollector"] }) {
  const counts: [number, string][] = [
    [of.datagrams_not_accepted, "datagrams not accepted"],
    [of.packets_not_written, "packets not written"],
    [of.socket_drops, "messages dropped by its socket"],
    [of.sessions_left_out, "sessions left out of its reports"],
  ];
  const bad = counts.filter(([number]) => number > 0);
  return (
    <>
      <p class={of.state === "up" ? "" : "bad"}>
        Collector {of.state}
        {of.from && ` at ${of.from}`}, last report {ago(of.heard_seconds)}
        {of.program && `, strata ${of.program}`}
      </p>
      {bad.length > 0 && (
        <Notice kind="warn">{bad.map(([number, what]) => `${grouped(number)} ${what}`).join("; ")}</Notice>
      )}
      {of.copies.length > 0 && (
        <Notice kind="bad">
          Two collectors report with its certificate, from {of.copies.join(" and from ")}: the second is refused.
        </Notice>
      )}
    </>
  );
}

const SHOWN = [
  ["", "All"],
  ["attention", "Needs attention"],
] as const;

function needsAttention(host: Host, version: number): boolean {
  if (host.state === "revoked") return false;
  const lost = host.lost > 0 || host.kernel_dropped > 0;
  return host.state !== "up" || host.version !== version || host.clock_is_off || lost || problems(host).length > 0;
}

function problems(host: Host): string[] {
  const all = host.exports.filter(({ problem }) => problem !== "");
  const texts = all.map(({ destination, problem }) => `${destination}: ${problem}`);
  if (host.problem !== "") texts.unshift(host.problem);
  if (host.copies.length > 0) {
    texts.push(
      `two agents report with its certificate, from ${host.copies.join(" and from ")}: its directory was copied, and the second is refused`,
    );
  }
  return texts;
}

function Hosts({ of: fleet, place }: { of: FleetOf; place: Place }) {
  const { version } = fleet.rollout;
  const only = place.query.get("hosts") === "attention" ? "attention" : "";
  const [open, setOpen] = useState<string | null>(null);
  const shown = fleet.listed.filter((host) => only === "" || needsAttention(host, version));
  return (
    <Card
      title="Hosts"
      side={
        <Choice label="Hosts" of={SHOWN} is={only} choose={(hosts) => go(changed(place, { hosts: hosts || null }), true)} />
      }
    >
      {shown.length === 0 ? (
        <p>{fleet.listed.length === 0 ? "No agents have enrolled." : "No host needs attention."}</p>
      ) : (
        <Rows
          label="Hosts"
          head={[
            "Host",
            "State",
            "Last report",
            "Clock",
            { text: "Policies", number: true },
            { text: "Interfaces", number: true },
            { text: "Dropped by kernel", number: true },
            { text: "Lost", number: true },
            "",
          ]}
        >
          {shown.map((host) => {
            const isOpen = open === host.name;
            return (
              <HostRows
                key={host.name}
                of={host}
                version={version}
                open={isOpen}
                turn={() => setOpen(isOpen ? null : host.name)}
              />
            );
          })}
        </Rows>
      )}
      {fleet.hosts_left_out > 0 && (
        <p class="quiet">
          {plural(fleet.hosts_left_out, "further host")}, none in a worse state, are not listed: strata controller agents
          lists all.
        </p>
      )}
    </Card>
  );
}

const STATES: Record<string, string> = { up: "good", silent: "bad", never: "bad", revoked: "quiet" };

function HostRows(props: { of: Host; version: number; open: boolean; turn: () => void }) {
  const { of: host, version } = props;
  const texts = problems(host);
  const behind = host.version !== version && host.state !== "revoked";
  return (
    <>
      <tr>
        <th scope="row">{host.name}</th>
        <td class={STATES[host.state] ?? ""}>{host.state}</td>
        <td>{ago(host.heard_seconds)}</td>
        <td class={host.clock_is_off ? "warn" : ""}>{clock(host.clock_offset_ms)}</td>
        <td class={behind ? "number warn" : "number"}>
          {behind ? `${host.version} of ${version}` : host.version}
          {host.behind_why !== null && <small> {host.behind_why}</small>}
        </td>
        <td class="number">{count(host.captures)}</td>
        <td class={host.kernel_dropped > 0 ? "number bad" : "number"}>{grouped(host.kernel_dropped)}</td>
        <td class={host.lost > 0 ? "number bad" : "number"}>{grouped(host.lost)}</td>
        <td>
          <button type="button" class="plain" aria-expanded={props.open} aria-label={`Details of ${host.name}`} onClick={props.turn}>
            Details
          </button>
        </td>
      </tr>
      {texts.length > 0 && (
        <tr>
          <td colSpan={9} class="bad">
            {texts.join("; ")}
          </td>
        </tr>
      )}
      {props.open && (
        <tr>
          <td colSpan={9}>
            <Details of={host} />
          </td>
        </tr>
      )}
    </>
  );
}

/** Milliseconds that a clock is off; few are of the way of the report. */
function clock(ms: number | null): string {
  if (ms === null) return "–";
  if (ms === 0) return "equal";
  return `${duration(Math.abs(ms) / 1000)} ${ms > 0 ? "ahead" : "behind"}`;
}

function Details({ of: host }: { of: Host }) {
  const labels = Object.entries(host.labels).map(([key, value]) => `${key}=${value}`);
  return (
    <>
      <p>
        {host.program === "" ? "Version of the program not known" : `strata ${host.program}`}; certificate until{" "}
        {dayTime(nanoseconds(host.certificate_until))}
        {labels.length > 0 && <>; labels {labels.join(", ")}</>}
      </p>
      {host.cpu && (
        <p class={host.cpu.short === "" ? "" : "warn"}>
          CPU {percent(host.cpu.used)} of {percent(host.cpu.budget)}, {percent(host.cpu.flow_share)} of flows
          {host.cpu.short !== "" && `; headers only, and at most ${percent(host.cpu.left)}: ${host.cpu.short}`}
        </p>
      )}
      {host.exports.length > 0 && (
        <Rows
          label={`Exports of ${host.name}`}
          head={[
            "Destination",
            { text: "Packets", number: true },
            { text: "Lost", number: true },
            { text: "Unfit", number: true },
            { text: "Cut", number: true },
            { text: "Datagrams not sent", number: true },
          ]}
        >
          {host.exports.map((to) => (
            <tr key={to.destination}>
              <th scope="row">{to.destination}</th>
              <td class="number">{grouped(to.packets)}</td>
              <td class={to.lost > 0 ? "number bad" : "number"}>{grouped(to.lost)}</td>
              <td class="number">{grouped(to.unfit)}</td>
              <td class="number">{grouped(to.cut)}</td>
              <td class={to.datagrams_not_sent > 0 ? "number bad" : "number"}>{grouped(to.datagrams_not_sent)}</td>
            </tr>
          ))}
        </Rows>
      )}
      {host.interfaces.length > 0 && (
        <Rows
          label={`Interfaces of ${host.name}`}
          head={["Interface", { text: "Identity", number: true }, "Other end", "Alias", "Bridge", "MAC address"]}
        >
          {host.interfaces.map((one) => (
            <tr key={one.name}>
              <th scope="row">
                {one.name} {!one.is_present && <small>not present</small>}
              </th>
              <td class="number">{one.identity ?? "–"}</td>
              <td>{one.behind}</td>
              <td>{one.alias}</td>
              <td>{one.bridge}</td>
              <td>{one.mac}</td>
            </tr>
          ))}
        </Rows>
      )}
      {host.interfaces_left_out > 0 && (
        <p class="quiet">{plural(host.interfaces_left_out, "further interface")} not listed.</p>
      )}
    </>
  );
}

function Events({ of: fleet }: { of: FleetOf }) {
  return (
    <Card title="Changes at the controller">
      {fleet.events.length === 0 ? (
        <p>Nothing was changed yet.</p>
      ) : (
        <Rows label="Changes at the controller" head={["Time", "Change", "By", "What", "Reason"]}>
          {fleet.events.map((one, index) => (
            <tr key={index}>
              <td>{dayTime(nanoseconds(one.at))}</td>
              <td>{one.kind}</td>
              <td>{one.who}</td>
              <td>{one.what}</td>
              <td>{one.why}</td>
            </tr>
          ))}
        </Rows>
      )}
    </Card>
  );
}
