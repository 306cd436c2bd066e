// Ask: SQL, and Marple's language for what happens within flows.
import { useMemo, useRef, useState } from "preact/hooks";
import { call, nanoseconds, type Answer, type KeptQuestion, type Schemas, type Session } from "../api/client";
import { dayTime, duration, grouped, plural } from "../format";
import { asRefused, useKept, useLoad } from "../hooks";
import type { View } from "../main";
import { changed, go } from "../router";
import { useDark } from "../theme";
import { Card, Choice, Command, Loading, Notice, Problem, Select } from "../ui/bits";
import { colour } from "../ui/colour";
import { Chart } from "../ui/chart";
import { type Column, VirtualTable } from "../ui/table";

type Language = "sql" | "marple";
type Question = Schemas["Askable"]["questions"][number];
/** Questions that a browser keeps, and characters of a name. */
const KEPT_MOST = 50;
const NAME_LONGEST = 60;

/** Questions that are kept, by the server or else by this browser. */
interface Keeping {
  where: string;
  questions: KeptQuestion[];
  problem: Error | null;
  /** Missing where one may not. */
  keep?: (question: KeptQuestion) => void;
  forget?: (name: string) => void;
}

function useKeeping(session: Session): Keeping {
  const [own, setOwn] = useKept<KeptQuestion[]>("ask.saved", []);
  const [problem, setProblem] = useState<Error | null>(null);
  const { keeps } = session;
  const shared = useLoad(async (signal) => (keeps ? call("questions", { signal }) : []), [keeps]);
  if (!keeps) {
    const others = (name: string) => own.filter((one) => one.name !== name);
    return {
      where: "Saved in this browser",
      questions: own,
      problem: null,
      keep: (question) => setOwn([question, ...others(question.name)].slice(0, KEPT_MOST)),
      forget: (name) => setOwn(others(name)),
    };
  }
  const change = async (changing: Promise<unknown>) => {
    try {
      await changing;
      setProblem(null);
      shared.again();
    } catch (error) {
      setProblem(asRefused(error));
    }
  };
  const may = session.roles.includes("payload") && !session.read_only;
  return {
    where: "Saved for all users",
    questions: shared.data ?? [],
    problem: problem ?? shared.problem,
    ...(may && {
      keep: (question) => void change(call("keepQuestion", { body: question })),
      forget: (name) => void change(call("forgetQuestion", { path: { name } })),
    }),
  };
}

export function Ask({ place, session }: View) {
  const askable = useLoad((signal) => call("askable", { signal }), []);
  const can = askable.data;
  const language: Language =
    (place.query.get("language") as Language | null) ?? (can && !can.sql.available ? "marple" : "sql");
  const log = place.query.get("log") ?? session.logs[0]?.id ?? "";
  const asked = place.query.get("text") ?? "";
  const [text, setText] = useState(asked);
  const [params, setParams] = useState<Record<string, string>>({});
  const keeping = useKeeping(session);
  const [state, setState] = useState<{ answer: Answer | null; problem: Error | null; running: boolean }>({
    answer: null,
    problem: null,
    running: false,
  });
  const control = useRef<AbortController | null>(null);
  const question = can?.questions.find((one) => one.language === language && one.name === text.trim());

  const ask = async (event: Event) => {
    event.preventDefault();
    control.current?.abort();
    const mine = new AbortController();
    control.current = mine;
    setState({ answer: null, problem: null, running: true });
    go(changed(place, { language, text }), true);
    try {
      const given = question ? params : {};
      const body = { language, log, text, params: given, rows_max: 10_000 };
      const answer = await call("ask", { body, signal: mine.signal });
      setState({ answer, problem: null, running: false });
    } catch (error) {
      const problem = mine.signal.aborted ? null : asRefused(error);
      if (control.current === mine) setState({ answer: null, problem, running: false });
    }
  };
  const choose = (one: { language: Language; name: string; text: string }, shipped: Question | null) => {
    setText(shipped && one.language === "marple" ? one.name : one.text);
    setParams(Object.fromEntries((shipped?.params ?? []).map(({ name, default: value }) => [name, value ?? ""])));
    go(changed(place, { language: one.language, text: null }), true);
  };
  if (session.logs.length === 0) return <Notice kind="info">No log is open, so there are no packets to query.</Notice>;
  const availability = can?.[language];
  const may = session.roles.includes("payload");
  return (
    <>
      <h1>Ask</h1>
      <Problem of={askable.problem} again={askable.again} />
      <Loading when={askable.loading && !can} />
      {can && (
        <div class="ask">
          <form class="card" onSubmit={ask} aria-label="Query">
            <header>
              <Choice
                label="Language"
                of={[
                  ["sql", "SQL"],
                  ["marple", "Marple"],
                ]}
                is={language}
                choose={(language) => go(changed(place, { language }))}
              />
              {session.logs.length > 1 && (
                <Select
                  label="Log"
                  is={log}
                  of={session.logs.map(({ id, path }) => [id, path] as const)}
                  choose={(log) => go(changed(place, { log }))}
                />
              )}
            </header>
            {!may && <Notice kind="warn">Answers may contain payload: only users who may view payload can ask.</Notice>}
            {availability && !availability.available && <Notice kind="warn">{availability.problem}</Notice>}
            <label class="labelled">
              <span>{language === "sql" ? "SQL" : "Marple's language, or the name of a query"}</span>
              <textarea
                rows={6}
                spellcheck={false}
                value={text}
                maxLength={65536}
                onInput={(event) => setText(event.currentTarget.value)}
                onKeyDown={(event) => {
                  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) void ask(event);
                }}
              />
            </label>
            {question?.params?.map(({ name, default: value }) => (
              <label key={name} class="labelled">
                <span>{name}</span>
                <input
                  value={params[name] ?? value ?? ""}
                  onInput={(event) => setParams({ ...params, [name]: event.currentTarget.value })}
                />
              </label>
            ))}
            <p class="actions">
              <button type="submit" class="main" disabled={text.trim() === "" || availability?.available === false || !may}>
                Ask
              </button>
              {state.running && (
                <button type="button" onClick={() => control.current?.abort()}>
                  Stop
                </button>
              )}
              {keeping.keep && (
                <button
                  type="button"
                  disabled={text.trim() === ""}
                  onClick={() => {
                    const name = text.trim().replace(/\s+/g, " ").slice(0, NAME_LONGEST);
                    keeping.keep?.({ language, name, text });
                  }}
                >
                  Save this query
                </button>
              )}
            </p>
            <Loading when={state.running}>Asking …</Loading>
            <Problem of={state.problem} />
          </form>
          <Beside can={can} language={language} keeping={keeping} choose={choose} />
        </div>
      )}
      {state.answer && <Result key={state.answer.command} of={state.answer} />}
    </>
  );
}

interface BesideProps {
  can: Schemas["Askable"];
  language: Language;
  keeping: Keeping;
  choose: (one: KeptQuestion, shipped: Question | null) => void;
}

/** Questions to choose from, and the tables. */
function Beside({ can, language, keeping, choose }: BesideProps) {
  return (
    <aside class="card beside" aria-label="Queries and tables">
      <Problem of={keeping.problem} />
      {keeping.questions.length > 0 && (
        <>
          <h2>{keeping.where}</h2>
          <ul class="plain-list">
            {keeping.questions.map((one) => (
              <li key={one.name}>
                <button type="button" class="link" title={one.by ? `${one.by}, ${one.at ?? ""}` : ""} onClick={() => choose(one, null)}>
                  {one.name}
                </button>{" "}
                {keeping.forget && (
                  <button type="button" class="plain" aria-label={`Delete ${one.name}`} onClick={() => keeping.forget?.(one.name)}>
                    ✕
                  </button>
                )}
              </li>
            ))}
          </ul>
        </>
      )}
      <h2>Queries</h2>
      <ul class="plain-list">
        {can.questions
          .filter((one) => one.language === language)
          .map((one) => (
            <li key={one.name}>
              <button type="button" class="link" onClick={() => choose(one, one)}>
                {one.name}
              </button>{" "}
              <small>{one.what}</small>
            </li>
          ))}
      </ul>
      {language === "sql" && (
        <>
          <h2>Tables</h2>
          {can.tables.map((table) => (
            <details key={table.name}>
              <summary>{table.name}</summary>
              <dl class="columns">
                {table.columns.map((column) => (
                  <div key={column.name}>
                    <dt>
                      <code>{column.name}</code> <small>{column.type}</small>
                    </dt>
                    <dd>{column.what}</dd>
                  </div>
                ))}
              </dl>
            </details>
          ))}
        </>
      )}
    </aside>
  );
}

type Row = unknown[];

/** How the rows of an answer are ordered by a click on a column's name. */
interface Order {
  column: number;
  descending: boolean;
}

function Result({ of: answer }: { of: Answer }) {
  const [order, setOrder] = useState<Order | null>(null);
  const columns = useMemo(
    () =>
      answer.columns.map<Column<Row>>((column, index) => ({
        key: `${index}`,
        name: column.name,
        width: column.type === "number" ? 6 : 10,
        grow: column.type === "number" ? 1 : 2,
        number: column.type === "number",
        sorts: true,
        cell: (row) => cell(row[index], column),
      })),
    [answer],
  );
  const rows = useMemo(() => ordered(answer.rows as Row[], order), [answer, order]);
  const by = order ?? (answer.sorted_by === null ? null : { column: answer.sorted_by, descending: true });
  const onSort = (key: string) => {
    const column = Number(key);
    const first = answer.columns[column]?.type === "number";
    setOrder({ column, descending: by?.column === column ? !by.descending : first });
  };
  return (
    <Card title="Answer" side={<span class="quiet">{`${plural(answer.rows.length, "row")} in ${duration(answer.seconds)}`}</span>}>
      {answer.truncated && <Notice kind="warn">Incomplete answer: {answer.truncated}</Notice>}
      {answer.notes.map((note, index) => (
        <p key={index} class="quiet">
          {note}
        </p>
      ))}
      <Plot of={answer} />
      {answer.rows.length === 0 ? (
        <p>No rows.</p>
      ) : (
        <VirtualTable
          label="Answer"
          columns={columns}
          total={rows.length}
          row={(index) => rows[index]}
          want={nothing}
          open={nothing}
          {...(by && { sort: `${by.column}`, order: by.descending ? "desc" : "asc" })}
          onSort={onSort}
          height={Math.min(480, 40 + answer.rows.length * 30)}
        />
      )}
      <p>Equivalent command:</p>
      <Command text={answer.command} />
    </Card>
  );
}

/** Rows in another order; those with nothing in the column come last. */
function ordered(rows: Row[], order: Order | null): Row[] {
  if (!order) return rows;
  const { column, descending } = order;
  const compared = (a: unknown, b: unknown) => {
    if (a == null || b == null) return Number(a == null) - Number(b == null);
    const rank = typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));
    return descending ? -rank : rank;
  };
  return [...rows].sort((a, b) => compared(a[column], b[column]));
}

function nothing(): void {
  // All rows are here, and none opens.
}

type AnswerColumn = Answer["columns"][number];

function cell(value: unknown, { type, measure }: AnswerColumn): string {
  if (value === null || value === undefined) return "";
  if (type === "number" && typeof value === "number") {
    // A port is no amount: its digits are not grouped.
    return measure && Number.isInteger(value) ? grouped(value) : String(value);
  }
  if (type === "time" && typeof value === "string" && value.endsWith("Z")) return dayTime(nanoseconds(value), 3);
  return typeof value === "string" ? value : JSON.stringify(value);
}

/** Points drawn, and bars. */
const POINTS_MOST = 2000;
const BARS_MOST = 20;

/** Amounts over time where there is a time; else one of them as bars: that by which the rows are sorted. */
function Plot({ of: answer }: { of: Answer }) {
  const dark = useDark();
  const amounts = answer.columns.flatMap(({ type, measure }, index) => (type === "number" && measure ? [index] : []));
  const times = answer.columns.findIndex(({ type }) => type === "time");
  const number = answer.sorted_by ?? amounts[0];
  if (number === undefined || answer.rows.length < 2) return null;
  if (times >= 0) {
    const rows = [...(answer.rows as Row[])]
      .filter((row) => typeof row[times] === "string")
      .map((row) => ({ at: Number(nanoseconds(row[times] as string)) / 1e9, row }))
      .sort((a, b) => a.at - b.at);
    const shown = rows.slice(0, POINTS_MOST);
    const drawn = amounts.slice(0, 4).map((index) => ({
      name: answer.columns[index]?.name ?? "",
      colour: colour(`column ${index}`, "full", dark),
      values: shown.map(({ row }) => (typeof row[index] === "number" ? (row[index] as number) : null)),
      over: true,
    }));
    return (
      <>
        <Chart label="Answer" t={shown.map(({ at }) => at)} lines={drawn} format={String} height={180} />
        {rows.length > shown.length && (
          <p class="quiet">
            The first {grouped(shown.length)} of {grouped(rows.length)} rows are drawn.
          </p>
        )}
      </>
    );
  }
  return <Bars of={answer} number={number} />;
}

function Bars({ of: answer, number }: { of: Answer; number: number }) {
  const rows = (answer.rows as Row[]).slice(0, BARS_MOST);
  const amount = (row: Row) => Math.max(Number(row[number] ?? 0), 0);
  const most = Math.max(...rows.map(amount), 0);
  if (most <= 0) return null;
  const name = answer.columns[number]?.name ?? "values";
  // What a row is about: all that is no amount.
  const about = answer.columns.flatMap((column, index) => (column.measure ? [] : [[column, index] as const]));
  const which = answer.sorted_by === number ? "largest" : "first";
  return (
    <>
      <p class="quiet">
        <b>{name}</b>
        {rows.length < answer.rows.length && `, the ${which} ${rows.length} of ${plural(answer.rows.length, "row")}`}
      </p>
      <ul class="top-list" aria-label={`${name} as bars`}>
        {rows.map((row, index) => {
          const text = about.map(([column, at]) => cell(row[at], column)).join(" · ");
          return (
            <li key={index}>
              <span title={text}>{text || `row ${index + 1}`}</span>
              <span class="meter" aria-hidden="true">
                <span class="fill" style={{ width: `${(amount(row) / most) * 100}%` }} />
              </span>
              <span class="number">{cell(row[number], answer.columns[number] as AnswerColumn)}</span>
            </li>
          );
        })}
      </ul>
    </>
  );
}
