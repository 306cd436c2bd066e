//! What the shadow model of a recording would have kept differently.

use strata_control::{PacketStatus, ShadowStatus};
use strata_wire::{grouped, human_bytes};

use crate::text::listing::{ColumnForm, Reader, Row, listing, row, word};

/// What a shadow model would have kept differently, as a page of its own.
pub fn compared(shadow: &ShadowStatus, reader: Reader) -> String {
    listing(
        reader,
        [ColumnForm::words(8), ColumnForm::words(0)],
        self::shadow(shadow),
    )
}

/// What a shadow model would have kept differently, in all and by class.
pub fn shadow(shadow: &ShadowStatus) -> Vec<Row> {
    let text = |counts: &[PacketStatus]| {
        let counts = counts.iter().map(|packets| {
            let (count, bytes) = (grouped(packets.packets), human_bytes(packets.bytes));
            let result = word(&packets.result).replace('_', " ");
            format!("{result}: {count} packets, {bytes}")
        });
        counts.collect::<Vec<_>>().join("; ")
    };
    let classes = shadow.classes.iter().map(|of| {
        let class = word(&of.class);
        row("shadow", format!("class {class}: {}", text(&of.packets)))
    });
    let models = shadow.models.as_ref().map(|models| {
        let promoted = if models.promoted { " (promoted)" } else { "" };
        let (in_force, in_shadow) = (word(&models.in_force), word(&models.in_shadow));
        row(
            "models",
            format!("{in_force} is in force{promoted}; shadow: {in_shadow}"),
        )
    });
    let all = row("shadow", text(&shadow.packets));
    models.into_iter().chain([all]).chain(classes).collect()
}
