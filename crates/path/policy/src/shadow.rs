//! What another model would have kept.

use strata_wire::{Summed, counters};

counters! {
    /// What a shadow model would have kept differently of the packets of one class.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct ShadowClass {
        /// Packets that the model at work put in this class, and their bytes on the wire.
        pub compared,
        /// Packets that the shadow put in this class, and their bytes on the wire.
        pub of_shadow,
        /// Packets of `compared` of which the shadow would have kept more, and how many bytes more.
        pub more,
        /// Packets of `compared` of which it would have kept less, and how many bytes less.
        pub less,
    }
}

/// What a shadow model would have kept differently of all packets that both models judged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShadowCounts {
    by_class: Box<[ShadowClass]>,
}

impl ShadowCounts {
    /// For models of this many classes.
    #[must_use]
    pub fn new(classes: usize) -> Self {
        Self {
            by_class: vec![ShadowClass::default(); classes + 1].into(),
        }
    }

    /// By class; the one after the last is for what is not dissected.
    #[must_use]
    pub fn by_class(&self) -> &[ShadowClass] {
        &self.by_class
    }

    /// Of all classes.
    #[must_use]
    pub fn all(&self) -> ShadowClass {
        let mut all = ShadowClass::default();
        self.by_class.iter().for_each(|class| all.merge(class));
        all
    }

    /// Counts a packet of these bytes on the wire, with its class and that of the shadow, and the
    /// numbers of bytes that were kept and that the shadow would have kept.
    ///
    /// # Panics
    ///
    /// If there is no such class.
    #[inline]
    pub fn add(
        &mut self,
        [class, of_shadow]: [u8; 2],
        wire_bytes: u64,
        [kept, would_keep]: [u32; 2],
    ) {
        self.by_class[usize::from(of_shadow)]
            .of_shadow
            .add(wire_bytes);
        let counts = &mut self.by_class[usize::from(class)];
        counts.compared.add(wire_bytes);
        if would_keep > kept {
            counts.more.add(u64::from(would_keep - kept));
        } else if would_keep < kept {
            counts.less.add(u64::from(kept - would_keep));
        }
    }
}

/// Of workers with the same model.
impl Summed for ShadowCounts {
    /// # Panics
    ///
    /// If that has other classes.
    fn merge(&mut self, more: &Self) {
        assert_eq!(self.by_class.len(), more.by_class.len(), "one model");
        let classes = self.by_class.iter_mut().zip(&more.by_class);
        classes.for_each(|(all, more)| all.merge(more));
    }
}

#[cfg(test)]
mod tests {
    use strata_wire::Counters;

    use super::*;

    #[test]
    fn differences_are_counted_in_the_class_of_the_model_at_work() {
        let mut counts = ShadowCounts::new(2);
        counts.add([0, 1], 1_000, [54, 1_000]);
        counts.add([1, 0], 500, [500, 54]);
        counts.add([2, 2], 60, [60, 60]);
        let [first, second, unknown] = counts.by_class() else {
            panic!("a class for what is not dissected");
        };
        let one = |bytes| Counters { packets: 1, bytes };
        assert_eq!(
            (first.compared, first.of_shadow, first.more, first.less),
            (one(1_000), one(500), one(946), Counters::default())
        );
        assert_eq!(
            (second.compared, second.of_shadow, second.more, second.less),
            (one(500), one(1_000), Counters::default(), one(446))
        );
        assert_eq!((unknown.compared, unknown.of_shadow), (one(60), one(60)));
        let mut twice = Some(counts.clone());
        twice.merge(&Some(counts));
        twice.merge(&None);
        assert_eq!(twice.unwrap().all().compared.packets, 6);
    }
}
