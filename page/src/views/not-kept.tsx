// What arrived and is not in a log: a search cannot find it there, so its place says so.
import { call, type Log, type Recorder, type Session } from "../api/client";
import { percent, plural } from "../format";
import { useLoad } from "../hooks";
import { Notice } from "../ui/bits";

export interface Sampled {
  packets: number;
  captured: number;
}

/** The log that is looked at, and how much of what was captured for it was sampled out. */
export function useLog(id: string, session: Session, on: unknown[]): { log: Log | null; sampled: Sampled | null } {
  const watched = session.recorders.some(({ log }) => log === id);
  const known = useLoad(
    async (signal) => {
      // A recorder that does not answer is reported elsewhere.
      const recorders = watched ? call("recorders", { signal }).catch((): Recorder[] => []) : [];
      const [logs, all] = await Promise.all([call("logs", { signal }), recorders]);
      return { log: logs.find((log) => log.id === id) ?? null, recorder: all.find(({ log }) => log === id) ?? null };
    },
    [id, watched, ...on],
    [id],
  );
  const log = known.data?.log ?? null;
  return { log: log?.id === id ? log : null, sampled: log ? sampledOut(log, known.data?.recorder ?? null) : null };
}

interface Ended {
  result: string;
  packets: number;
}

/** Of closed recordings the log tells it, of one that runs its recorder. */
function sampledOut(log: Log, recorder: Recorder | null): Sampled | null {
  const sum = { packets: 0, captured: 0 };
  for (const { not_kept, captured_packets } of log.recordings) {
    sum.captured += captured_packets ?? 0;
    sum.packets += not_kept?.find(({ how }) => how === "sampled_out")?.packets ?? 0;
  }
  const ended = recorder?.status?.["packets"];
  for (const { result, packets } of Array.isArray(ended) ? (ended as Ended[]) : []) {
    if (result !== "filtered") sum.captured += packets;
    if (result === "sampled_out") sum.packets += packets;
  }
  return sum.packets > 0 ? sum : null;
}

export function SampledNote(props: { of: Sampled | null }) {
  if (!props.of) return null;
  const { packets, captured } = props.of;
  return (
    <Notice kind="info">
      Sampled out by a mode or policy: {plural(packets, "packet")} ({percent(packets / captured)} of all packets captured
      for this log, not only in the selected time). Lists, downloads and counts do not include them.
    </Notice>
  );
}
