// The small parts that all views are made of.
import type { ComponentChildren } from "preact";
import { useEffect, useId, useRef, useState } from "preact/hooks";
import { type Changed, type Covered, type Owner, send } from "../api/client";
import { duration, plural } from "../format";
import { asRefused } from "../hooks";

export function Card(props: {
  title: string;
  /** Beside the title. */
  side?: ComponentChildren;
  class?: string;
  children: ComponentChildren;
}) {
  const id = useId();
  return (
    <section class={`card ${props.class ?? ""}`} aria-labelledby={id}>
      <header>
        <h2 id={id}>{props.title}</h2>
        {props.side}
      </header>
      {props.children}
    </section>
  );
}

/** What went wrong, or what one should know. */
export function Notice(props: { kind: "bad" | "warn" | "good" | "info"; children: ComponentChildren }) {
  return (
    <p class={`notice ${props.kind}`} role={props.kind === "bad" ? "alert" : "status"}>
      {props.children}
    </p>
  );
}

export function Problem(props: { of: Error | null; again?: () => void }) {
  if (!props.of) return null;
  return (
    <Notice kind="bad">
      {props.of.message}
      {props.again && (
        <>
          {" "}
          <button type="button" onClick={props.again}>
            Try again
          </button>
        </>
      )}
    </Notice>
  );
}

/** Whose an address is, where the server has names, countries or autonomous systems. */
export function owned(owner: Owner | null): string {
  if (!owner) return "";
  return [owner.name, owner.country, owner.as, owner.problem].filter((text) => text !== null).join(" · ");
}

/** An address, and whose it is. A name is a stranger's text: it does not change the direction of what is around it. */
export function Address(props: { of: string; owner: Owner | null }) {
  const text = owned(props.owner);
  if (text === "") return <>{props.of}</>;
  return (
    <span title={`${props.of} ${text}`}>
      {props.of}{" "}
      <small class="quiet">
        <bdi>{text}</bdi>
      </small>
    </span>
  );
}

/** What an answer was made from, where that is not everything. */
export function CoveredNote(props: { of: Covered | null | undefined }) {
  const covered = props.of;
  if (!covered) return null;
  const parts: string[] = [];
  if (!covered.complete) parts.push(covered.why ?? "not everything was searched");
  if (covered.damaged > 0) parts.push(`${plural(covered.damaged, "damaged place")} skipped`);
  if (covered.encrypted_packets > 0 && !covered.why) {
    parts.push(`${plural(covered.encrypted_packets, "packet")} encrypted: start strata serve with the key`);
  }
  if (covered.remark) parts.push(covered.remark);
  if (parts.length > 0) return <Notice kind="warn">{parts.join("; ")}</Notice>;
  return (
    <p class="quiet">
      {plural(covered.packets, "packet")} searched in {duration(covered.seconds)}
    </p>
  );
}

/** A share of something, as a bar with a name for screen readers. */
export function Meter(props: { share: number; mark?: number | null; bad?: boolean; label: string }) {
  const share = Math.min(1, Math.max(0, props.share));
  return (
    <span
      class={props.bad ? "meter bad" : "meter"}
      role="meter"
      aria-label={props.label}
      aria-valuemin={0}
      aria-valuemax={100}
      aria-valuenow={Math.round(share * 100)}
    >
      <span class="fill" style={{ width: `${share * 100}%` }} />
      {props.mark != null && <span class="mark" style={{ left: `${props.mark * 100}%` }} />}
    </span>
  );
}

/** A command line, to copy. */
export function Command(props: { text: string; label?: string }) {
  const [copied, setCopied] = useState(false);
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(props.text);
    } catch {
      // Without a clipboard (a page that is not on loopback or HTTPS) the text is selected.
      const range = document.createRange();
      if (code.current) range.selectNodeContents(code.current);
      getSelection()?.removeAllRanges();
      getSelection()?.addRange(range);
      return;
    }
    setCopied(true);
    setTimeout(() => setCopied(false), 1500);
  };
  const code = useRef<HTMLElement>(null);
  return (
    <div class="command">
      <code ref={code} tabIndex={0} role="textbox" aria-readonly="true" aria-label={props.label ?? "Command line"}>
        {props.text}
      </code>
      <button type="button" onClick={copy}>
        {copied ? "Copied" : "Copy"}
      </button>
    </div>
  );
}

export function Choice<T extends string>(props: {
  label: string;
  of: readonly (readonly [T, string])[];
  is: T;
  choose: (value: T) => void;
}) {
  return (
    <div class="choice" role="group" aria-label={props.label}>
      {props.of.map(([value, text]) => (
        <button
          key={value}
          type="button"
          aria-pressed={value === props.is}
          onClick={() => props.choose(value)}
        >
          {text}
        </button>
      ))}
    </div>
  );
}

/** A dialog of the browser's own: Escape closes it, and focus returns. */
export function Dialog(props: { title: string; close: () => void; children: ComponentChildren }) {
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    dialog.current?.showModal();
  }, []);
  return (
    <dialog ref={dialog} aria-label={props.title} onClose={props.close}>
      <header>
        <h2>{props.title}</h2>
        <button type="button" class="plain" aria-label="Close" onClick={() => dialog.current?.close()}>
          ✕
        </button>
      </header>
      {props.children}
    </dialog>
  );
}

/** What a change did, and the way back. */
export function Done(props: { of: Changed | null; undone: () => void }) {
  const [problem, setProblem] = useState<Error | null>(null);
  const [undoing, setUndoing] = useState(false);
  const change = props.of;
  if (!change) return null;
  const undo = async () => {
    if (!change.undo) return;
    setUndoing(true);
    try {
      await send(change.undo.method, change.undo.path, change.undo.body ?? undefined);
      setProblem(null);
      props.undone();
    } catch (error) {
      setProblem(asRefused(error));
    } finally {
      setUndoing(false);
    }
  };
  return (
    <div class="done">
      <Notice kind="good">
        Done: {change.what}{" "}
        {change.undo && (
          <button type="button" disabled={undoing} onClick={undo}>
            Undo
          </button>
        )}
      </Notice>
      <Problem of={problem} />
    </div>
  );
}

/** A labelled input. */
export function Labelled(props: { label: string; children: ComponentChildren; hint?: string }) {
  return (
    <label class="labelled">
      <span>{props.label}</span>
      {props.children}
      {props.hint && <small>{props.hint}</small>}
    </label>
  );
}

export function Select(props: {
  label: string;
  is: string;
  of: readonly (readonly [string, string])[];
  choose: (value: string) => void;
  hidden?: boolean;
}) {
  const choose = (event: Event) => props.choose((event.currentTarget as HTMLSelectElement).value);
  return (
    <label class={props.hidden ? "labelled bare" : "labelled"}>
      <span class={props.hidden ? "unseen" : ""}>{props.label}</span>
      <select value={props.is} onChange={choose}>
        {props.of.map(([value, text]) => (
          <option key={value} value={value}>
            {text}
          </option>
        ))}
      </select>
    </label>
  );
}

/** A plain table of few rows. */
export function Rows(props: {
  label: string;
  head: readonly (string | { text: string; number?: boolean })[];
  children: ComponentChildren;
}) {
  return (
    <div class="rows" tabIndex={0} role="region" aria-label={props.label}>
      <table>
        <thead>
          <tr>
            {props.head.map((column) => {
              const { text, number } = typeof column === "string" ? { text: column, number: false } : column;
              return (
                <th key={text} scope="col" class={number ? "number" : ""}>
                  {text}
                </th>
              );
            })}
          </tr>
        </thead>
        <tbody>{props.children}</tbody>
      </table>
    </div>
  );
}

export function Big(props: { value: string; of: string; kind?: "bad" | "good" | "warn" }) {
  return (
    <div class={`big ${props.kind ?? ""}`}>
      <strong>{props.value}</strong>
      <span>{props.of}</span>
    </div>
  );
}

export function Loading(props: { when: boolean; children?: ComponentChildren }) {
  if (!props.when) return null;
  return (
    <p class="quiet" role="status">
      {props.children ?? "Loading …"}
    </p>
  );
}

