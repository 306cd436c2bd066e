// The recordings of a log: their models, how well these fit, what a shadow model would keep.
import { call, type Schemas } from "../api/client";
import { bytes, count } from "../format";
import { useLoad } from "../hooks";
import { link } from "../router";
import { Card, Notice, Problem, Rows } from "../ui/bits";

type Recording = Schemas["Recording"];

/** Recordings listed; the newest. */
const LISTED = 50;

export function Recordings({ log }: { log: string }) {
  const models = useLoad<Recording[]>(
    async (signal) => (log === "" ? [] : call("models", { path: { log }, signal })),
    [log],
  );
  const all = [...(models.data ?? [])].sort((a, b) => b.id - a.id);
  return (
    <Card title="Recordings and their models">
      <Problem of={models.problem} again={models.again} />
      {all.length === 0 && !models.loading && !models.problem && <p>None.</p>}
      {all.length > 0 && (
        <Rows
          label="Recordings"
          head={[
            { text: "No.", number: true },
            "Source",
            "Mode at start",
            "Model",
            "Fit",
            { text: "Captured", number: true },
            { text: "Lost", number: true },
          ]}
        >
          {all.slice(0, LISTED).map((one) => (
            <tr key={one.id}>
              <td class="number">{one.id}</td>
              <th scope="row">
                {one.inputs.join(", ")}
                {one.filter && (
                  <>
                    {" "}
                    <code>{one.filter}</code>
                  </>
                )}{" "}
                <small>{one.state}</small>
              </th>
              <td>{one.mode}</td>
              <td>{one.model}</td>
              <td>{fit(one)}</td>
              <td class="number">{one.captured_packets == null ? "–" : count(one.captured_packets)}</td>
              <td class={(one.lost_packets ?? 0) > 0 ? "number bad" : "number"}>
                {one.lost_packets === null ? <a href={link("/now", {})}>see Now</a> : count(one.lost_packets)}
              </td>
            </tr>
          ))}
        </Rows>
      )}
      {all.slice(0, LISTED).flatMap((one) =>
        one.warnings.map((warning, index) => (
          <Notice key={`${one.id} ${index}`} kind="warn">
            Recording {one.id}: {warning}
          </Notice>
        )),
      )}
      {all.slice(0, LISTED).map((one) => one.shadow && <Shadow key={one.id} id={one.id} of={one.shadow} />)}
    </Card>
  );
}

function fit(one: Recording): string {
  if (!one.drift) return "not known";
  const index = one.drift.score_index.toFixed(2);
  if (one.drift.fits === null) return "too few packets to tell";
  if (one.drift.fits) return `fits (${index})`;
  const worst = one.drift.features[0];
  return `no longer fits (${index}${worst ? `, changed most: ${worst.name}` : ""})`;
}

type ShadowOf = NonNullable<Recording["shadow"]>;

/** What another model would have kept, of each class. */
function Shadow(props: { id: number; of: ShadowOf }) {
  const { models, packets, classes } = props.of;
  const shadow = models?.in_shadow ?? "the shadow model";
  return (
    <>
      <h3>
        Recording {props.id}:{" "}
        {models ? `shadow model ${models.in_shadow}, compared with ${models.in_force}` : "the shadow model"}
      </h3>
      {models?.promoted && (
        <p>The shadow model was promoted: it decides now, and the recording's own model is compared with it.</p>
      )}
      <Rows
        label={`Packets that ${shadow} would have kept`}
        head={[
          "Class",
          { text: "Packets", number: true },
          { text: `By ${shadow}`, number: true },
          { text: "Would keep more of", number: true },
          { text: "Less of", number: true },
        ]}
      >
        {classes.map((one) => (
          <ShadowRow key={one.class} name={one.class} packets={one.packets} />
        ))}
        <ShadowRow name="all" packets={packets} />
      </Rows>
    </>
  );
}

function ShadowRow(props: { name: string; packets: ShadowOf["packets"] }) {
  const of = (name: string) => props.packets.find(({ result }) => result === name) ?? { packets: 0, bytes: 0 };
  const differs = (name: string) => {
    const one = of(name);
    return one.packets === 0 ? "none" : `${count(one.packets)} (${bytes(one.bytes)})`;
  };
  return (
    <tr>
      <th scope="row">{props.name}</th>
      <td class="number">{count(of("compared").packets)}</td>
      <td class="number">{count(of("of_shadow").packets)}</td>
      <td class="number">{differs("more")}</td>
      <td class="number">{differs("less")}</td>
    </tr>
  );
}
