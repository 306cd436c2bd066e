// Another mode, for a time, with a reason.
import { useState } from "preact/hooks";
import { call, type Changed, type Recorder } from "../api/client";
import { asRefused, useLoad } from "../hooks";
import { Dialog, Done, Labelled, Problem, Select } from "../ui/bits";

const TIMES = [
  ["600", "10 minutes"],
  ["3600", "an hour"],
  ["28800", "8 hours"],
  ["", "until changed again"],
] as const;

const WHAT: Record<string, string> = {
  default: "anomalous packets whole; headers of all other packets",
  "log-all": "everything whole",
  "log-partial": "128 bytes of payload of anomalous packets; headers of all other packets",
  "log-sampled": "anomalous packets whole; headers of a tenth of the other packets",
  "log-minimum": "the smallest log",
};

export function ModeDialog(props: { recorder: string; now: string; close: () => void }) {
  const recorders = useLoad<Recorder[]>((signal) => call("recorders", { signal }), []);
  const modes = recorders.data?.find(({ id }) => id === props.recorder)?.modes ?? [];
  const [mode, setMode] = useState("");
  const [seconds, setSeconds] = useState<string>("600");
  const [why, setWhy] = useState("");
  const [done, setDone] = useState<Changed | null>(null);
  const [problem, setProblem] = useState<Error | null>(null);
  const chosen = mode || (modes.find((mode) => mode !== props.now) ?? "");
  const change = async (event: Event) => {
    event.preventDefault();
    try {
      const body = { mode: chosen, seconds: seconds === "" ? null : Number(seconds), why };
      setDone(await call("setMode", { path: { recorder: props.recorder }, body }));
      setProblem(null);
    } catch (error) {
      setProblem(asRefused(error));
    }
  };
  return (
    <Dialog title="Change mode" close={props.close}>
      <form onSubmit={change}>
        <p>
          Now: <b>{props.now}</b>. No packet is lost by the change. With a budget of detail, the budget decides which
          packets keep payload, regardless of their class.
        </p>
        <Problem of={recorders.problem} again={recorders.again} />
        <Select
          label="Mode"
          is={chosen}
          of={modes.map((mode) => [mode, WHAT[mode] ? `${mode}: ${WHAT[mode]}` : mode] as const)}
          choose={setMode}
        />
        <Select label="For" is={seconds} of={TIMES} choose={setSeconds} />
        <Labelled label="Why" hint="Stored with the event.">
          <input required maxLength={200} value={why} onInput={(event) => setWhy(event.currentTarget.value)} />
        </Labelled>
        <button type="submit" class="main" disabled={chosen === ""}>
          Change
        </button>
        <Problem of={problem} />
        <Done of={done} undone={props.close} />
      </form>
    </Dialog>
  );
}
