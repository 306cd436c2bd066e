//! What of a log is to be deleted: by age, and to free space the least important first, of those the
//! oldest.
//!
//! Age spares nothing: a file is deleted once its last packet is too old, even the newest file.
//! Only a file still being written stays, until it is complete. Freeing space never deletes the
//! newest, so that a log with too low a limit still holds something.

use std::collections::{BTreeMap, BTreeSet};

use strata_blocks::ClassCount;
use strata_store::Gone;

use crate::retention::{PROTECTED, retention_name};

/// How long and how much is kept. The default keeps everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Retention {
    /// How long, ns, unless a class has its own limit.
    pub keep_ns: Option<u64>,
    /// How long, ns, by retention class ([`retention_class`]).
    pub keep_class_ns: BTreeMap<String, u64>,
    /// Bytes of the whole log, without files stored elsewhere.
    pub bytes_max: Option<u64>,
}

impl Retention {
    /// How long this class is kept; `None` for ever.
    fn of(&self, class: &str) -> Option<u64> {
        let otherwise = self.keep_ns.filter(|_| class != PROTECTED);
        self.keep_class_ns.get(class).copied().or(otherwise)
    }

    /// How long to keep data that may be of any of these classes; `None` for ever.
    pub(crate) fn longest(&self, classes: &[String], protected: bool) -> Option<u64> {
        let protected = protected.then_some(PROTECTED);
        let mut longest = None;
        for class in classes.iter().map(String::as_str).chain(protected) {
            longest = longest.max(Some(self.of(class)?));
        }
        // Without classes, nothing could be kept longer.
        longest.or(self.keep_ns)
    }
}

/// The retention class for a class of a model: the class's name as in directory names.
#[must_use]
pub fn retention_class(class: &str) -> String {
    retention_name(Some(class))
}

/// What is deleted first when space is short.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Importance {
    /// Parts of classes that the model does not call anomalous.
    Ordinary,
    /// Parts of anomalous classes, and block files, which hold packets of all classes. Of a block file
    /// that holds some of what a policy protects too, that stays ([`Piece::holds_protected`]).
    Anomalous,
    /// What a policy protects: never deleted to free space.
    Protected,
}

/// Something that is deleted as a whole; but for block files with some of what a policy protects, which is
/// kept as a part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// What it is.
    pub what: PieceKind,
    /// Its recording.
    pub recording: u32,
    /// Its importance.
    pub importance: Importance,
    /// When its last packet arrived, ns.
    pub last_ns: u64,
    /// Bytes of its files.
    pub bytes: u64,
    /// Whether these are stored elsewhere: deleting them frees no space on the log's disk.
    pub remote: bool,
    /// Packets in it.
    pub packets: u64,
    /// The same by class and granularity.
    pub counts: Vec<ClassCount>,
    /// Whether it is a block file in which a policy may protect some packets.
    pub holds_protected: bool,
}

impl Piece {
    /// Whether what a policy protects can be taken out of it.
    fn can_be_split(&self) -> bool {
        self.holds_protected && self.importance < Importance::Protected
    }

    pub(crate) fn local_bytes(&self) -> u64 {
        if self.remote { 0 } else { self.bytes }
    }
}

/// What a [`Piece`] is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PieceKind {
    /// A part: packets of one hour and retention class.
    Part {
        /// Its number.
        id: u32,
        /// Its retention class.
        retention: String,
        /// Retention classes of its packets: those of a flow with an anomalous packet are together. None, if a policy
        /// protects them.
        classes: Vec<String>,
    },
    /// A block file that is no longer written to.
    Block {
        /// Its entry once it is gone.
        entry: Gone,
        /// Retention classes its packets may have, besides [`PROTECTED`].
        classes: Vec<String>,
    },
}

/// What to delete.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PrunePlan {
    /// Which pieces to delete, by index, in order of deletion.
    pub delete: Vec<usize>,
    /// How many of these, the first ones, are too old; the others make room.
    pub too_old: usize,
    /// Those of them of which the packets that policies protect stay.
    pub split: BTreeSet<usize>,
    /// Bytes that are left, if nothing is left of what is split.
    pub bytes_left: u64,
    /// Whether that exceeds the limit because nothing else may be deleted.
    pub still_too_large: bool,
}

/// Plans what to delete from a log of these pieces and of `held` bytes that cannot be deleted: all
/// that is too old at `now_ns`, then the least important, oldest first, until the log is small
/// enough. Of what is not too old, the newest piece and what is protected stay.
#[must_use]
pub fn plan(pieces: &[Piece], held: u64, retention: &Retention, now_ns: u64) -> PrunePlan {
    let mut order: Vec<usize> = (0..pieces.len()).collect();
    order.sort_by_key(|&at| (pieces[at].last_ns, at));
    let is_too_old = |piece: &Piece, protected: bool| {
        let keep = match &piece.what {
            // A part is not deleted before any of its classes.
            PieceKind::Part {
                retention: class,
                classes,
                ..
            } => retention.of(class).and_then(|keep| {
                let longest = retention.longest(classes, false);
                match classes.is_empty() {
                    true => Some(keep),
                    false => longest.map(|longest| longest.max(keep)),
                }
            }),
            PieceKind::Block { classes, .. } => retention.longest(classes, protected),
        };
        keep.is_some_and(|keep| is_older(piece.last_ns, keep, now_ns))
    };
    let goes_whole = |at: usize| is_too_old(&pieces[at], pieces[at].holds_protected);
    let goes_in_part = |at: usize| pieces[at].can_be_split() && is_too_old(&pieces[at], false);
    let (mut delete, mut rest): (Vec<_>, Vec<_>) = order
        .into_iter()
        .partition(|&at| goes_whole(at) || goes_in_part(at));
    let mut split: BTreeSet<usize> = delete
        .iter()
        .copied()
        .filter(|&at| !goes_whole(at))
        .collect();
    let too_old = delete.len();
    // The newest is not deleted to free space.
    rest.pop();
    let sum = |bytes: u64, piece: &Piece| bytes.saturating_add(piece.local_bytes());
    let total = pieces.iter().fold(held, sum);
    let old = delete.iter().map(|&at| &pieces[at]).fold(0, sum);
    let mut bytes_left = total.saturating_sub(old);
    rest.retain(|&at| pieces[at].importance < Importance::Protected && !pieces[at].remote);
    rest.sort_by_key(|&at| pieces[at].importance);
    let is_too_large = |bytes: u64| retention.bytes_max.is_some_and(|max| bytes > max);
    for at in rest {
        if !is_too_large(bytes_left) {
            break;
        }
        bytes_left = bytes_left.saturating_sub(pieces[at].bytes);
        delete.push(at);
        if pieces[at].can_be_split() {
            split.insert(at);
        }
    }
    PrunePlan {
        delete,
        too_old,
        split,
        bytes_left,
        still_too_large: is_too_large(bytes_left),
    }
}

/// Whether a time is longer ago than the limit.
pub(crate) fn is_older(time_ns: u64, keep_ns: u64, now_ns: u64) -> bool {
    now_ns.saturating_sub(time_ns) > keep_ns
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn part(class: &str, importance: Importance, last_ns: u64, bytes: u64) -> Piece {
        Piece {
            what: PieceKind::Part {
                id: 1,
                retention: class.to_owned(),
                classes: Vec::new(),
            },
            importance,
            last_ns,
            bytes,
            recording: 1,
            remote: false,
            packets: 1,
            counts: Vec::new(),
            holds_protected: false,
        }
    }

    #[test]
    fn room_is_made_by_importance_then_age() {
        let pieces = [
            part("protected", Importance::Protected, 1, 10),
            part("anomalous", Importance::Anomalous, 2, 10),
            part("benign", Importance::Ordinary, 4, 10),
            part("benign", Importance::Ordinary, 3, 10),
            part("benign", Importance::Ordinary, 5, 10),
        ];
        let to = |bytes| {
            let retention = Retention {
                bytes_max: Some(bytes),
                ..Retention::default()
            };
            plan(&pieces, 7, &retention, 100)
        };
        assert_eq!(to(57).delete, [] as [usize; 0]);
        assert_eq!(to(56).delete, [3]);
        assert_eq!(to(40).delete, [3, 2]);
        let least = to(0);
        assert_eq!(
            (least.delete.as_slice(), least.bytes_left),
            (&[3, 2, 1][..], 27)
        );
        assert!(least.still_too_large, "the newest and the protected stay");
    }

    fn blocks(classes: &[&str], importance: Importance, last_ns: u64) -> Piece {
        let entry = Gone {
            name: "blocks/r0001-w00-000000.strata".into(),
            recording: 1,
            worker: 0,
            packets: 1,
            first_seq: 0,
            next_seq: 1,
            incomplete: 0,
        };
        let classes = classes.iter().map(|&class| class.to_owned()).collect();
        Piece {
            what: PieceKind::Block { entry, classes },
            ..part("", importance, last_ns, 10)
        }
    }

    #[test]
    fn age_takes_the_newest_too_and_room_does_not() {
        let pieces = [
            part("benign", Importance::Ordinary, 10, 10),
            part("benign", Importance::Ordinary, 20, 10),
            blocks(&["benign"], Importance::Anomalous, 30),
        ];
        let mut retention = Retention {
            keep_ns: Some(50),
            ..Retention::default()
        };
        assert_eq!(
            plan(&pieces, 0, &retention, 80).delete,
            [0, 1],
            "30 is 50 old, not more"
        );
        assert_eq!(plan(&pieces, 0, &retention, 81).delete, [0, 1, 2]);
        retention.bytes_max = Some(0);
        let both = plan(&pieces, 0, &retention, 65);
        assert_eq!(both.delete, [0, 1], "one by age, one for room");
        assert!(both.still_too_large);
    }

    #[test]
    fn a_part_stays_as_long_as_any_class_of_its_packets() {
        let mut mixed = part("anomalous", Importance::Anomalous, 0, 1);
        if let PieceKind::Part { classes, .. } = &mut mixed.what {
            *classes = vec!["anomalous".to_owned(), "benign".to_owned()];
        }
        let mut retention = Retention::default();
        let mut gone = |class: &str, keep_ns: u64| {
            retention.keep_class_ns.insert(class.to_owned(), keep_ns);
            !plan(&[mixed.clone()], 0, &retention, 100).delete.is_empty()
        };
        assert!(!gone("anomalous", 50), "benign has no age");
        assert!(!gone("benign", 500));
        assert!(gone("benign", 60));
        assert!(!gone("anomalous", 500));
    }

    #[test]
    fn block_files_stay_as_long_as_any_of_their_classes() {
        let mut pieces = [
            blocks(&["benign", "anomalous"], Importance::Anomalous, 0),
            blocks(&["benign"], Importance::Anomalous, 0),
            blocks(&["benign"], Importance::Protected, 0),
        ];
        // One that cannot be split, as it is damaged.
        pieces[2].holds_protected = true;
        let mut retention = Retention::default();
        retention.keep_class_ns.insert("benign".to_owned(), 50);
        let gone = |retention: &Retention, now| plan(&pieces, 0, retention, now).delete;
        assert_eq!(gone(&retention, 100), [1], "anomalous has no age");
        retention.keep_class_ns.insert("anomalous".to_owned(), 150);
        assert_eq!(gone(&retention, 100), [1]);
        assert_eq!(gone(&retention, 151), [0, 1]);
        retention.keep_class_ns.insert(PROTECTED.to_owned(), 200);
        assert_eq!(gone(&retention, 200), [0, 1]);
        assert_eq!(gone(&retention, 201), [0, 1, 2]);
    }

    #[test]
    fn what_lies_elsewhere_goes_by_age_and_not_for_room() {
        let mut pieces = [1, 2, 3].map(|at| part("benign", Importance::Ordinary, at, 10));
        pieces[0].remote = true;
        let mut retention = Retention {
            bytes_max: Some(15),
            ..Retention::default()
        };
        let made = plan(&pieces, 0, &retention, 100);
        assert_eq!((made.delete.as_slice(), made.bytes_left), (&[1][..], 10));
        retention = Retention {
            keep_ns: Some(98),
            ..Retention::default()
        };
        assert_eq!(plan(&pieces, 0, &retention, 100).delete, [0]);
    }

    #[test]
    fn what_is_protected_goes_by_age_only_if_its_own_is_given() {
        let pieces = [
            part("protected", Importance::Protected, 1, 10),
            part("benign", Importance::Ordinary, 2, 10),
            part("benign", Importance::Ordinary, 1_000, 10),
        ];
        let mut retention = Retention {
            keep_ns: Some(50),
            ..Retention::default()
        };
        assert_eq!(plan(&pieces, 0, &retention, 1_000).delete, [1]);
        retention.keep_class_ns.insert(PROTECTED.to_owned(), 500);
        assert_eq!(plan(&pieces, 0, &retention, 1_000).delete, [0, 1]);
    }

    /// A block file with some of what a policy protects is as important as any other; what is protected
    /// of it stays.
    #[test]
    fn of_a_mixed_block_file_what_is_protected_stays() {
        let mut pieces = [1, 2, 3].map(|at| blocks(&["benign"], Importance::Anomalous, at));
        pieces[0].holds_protected = true;
        let room = Retention {
            bytes_max: Some(15),
            ..Retention::default()
        };
        let made = plan(&pieces, 0, &room, 0);
        assert_eq!((&made.delete[..], made.too_old), (&[0, 1][..], 0));
        assert_eq!(made.split, BTreeSet::from([0]));
        let mut age = Retention {
            keep_ns: Some(50),
            ..Retention::default()
        };
        let made = plan(&pieces, 0, &age, 52);
        assert_eq!((&made.delete[..], made.too_old), (&[0][..], 1));
        assert_eq!(made.split, BTreeSet::from([0]));
        age.keep_class_ns.insert(PROTECTED.to_owned(), 40);
        assert_eq!(plan(&pieces, 0, &age, 52).split, BTreeSet::new());
    }

    proptest! {
        /// Whatever else is there, age deletes exactly what is too old.
        #[test]
        fn age_takes_exactly_what_is_too_old(
            last in prop::collection::vec(0_u64..100, 0..20), keep_ns in 0_u64..100,
        ) {
            let pieces: Vec<Piece> =
                last.iter().map(|&last| part("some", Importance::Ordinary, last, 1)).collect();
            let retention = Retention { keep_ns: Some(keep_ns), ..Retention::default() };
            let mut gone = plan(&pieces, 0, &retention, 100).delete;
            gone.sort_unstable();
            let too_old = |&at: &usize| 100 - last[at] > keep_ns;
            let expected: Vec<usize> = (0..pieces.len()).filter(too_old).collect();
            prop_assert_eq!(gone, expected);
        }

        /// Nothing is deleted while something less important, or as important and older, stays.
        #[test]
        fn nothing_goes_before_what_is_worth_less(
            pieces in prop::collection::vec((0_usize..3, 0_u64..50, 0_u64..1_000), 0..30),
            bytes_max in 0_u64..20_000, held in 0_u64..500,
        ) {
            let kinds = [Importance::Ordinary, Importance::Anomalous, Importance::Protected];
            let pieces: Vec<Piece> = pieces
                .into_iter()
                .map(|(kind, last_ns, bytes)| part("some", kinds[kind], last_ns, bytes))
                .collect();
            let retention = Retention { bytes_max: Some(bytes_max), ..Retention::default() };
            let made = plan(&pieces, held, &retention, 0);
            let newest = (0..pieces.len()).max_by_key(|&at| (pieces[at].last_ns, at));
            let kept = |at: &usize| !made.delete.contains(at);
            let left: u64 = (0..pieces.len()).filter(kept).map(|at| pieces[at].bytes).sum();
            prop_assert_eq!(made.bytes_left, left + held);
            prop_assert_eq!(made.still_too_large, made.bytes_left > bytes_max);
            for &gone in &made.delete {
                prop_assert!(pieces[gone].importance < Importance::Protected);
                prop_assert!(Some(gone) != newest);
                for stays in (0..pieces.len()).filter(kept).filter(|at| Some(*at) != newest) {
                    let worth = |at: usize| (pieces[at].importance, pieces[at].last_ns);
                    prop_assert!(worth(stays) >= worth(gone));
                }
            }
            if made.still_too_large {
                let may = |at: &usize| Some(*at) != newest && pieces[*at].importance < Importance::Protected;
                prop_assert!((0..pieces.len()).filter(may).all(|at| !kept(&at)));
            } else if let Some(&last) = made.delete.last() {
                prop_assert!(made.bytes_left + pieces[last].bytes > bytes_max, "not more than needed");
            }
        }
    }
}
