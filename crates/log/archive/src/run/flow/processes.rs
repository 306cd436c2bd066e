//! The processes of both ends of a flow, from comments of its packets (`record --processes`).

use strata_processes::{Process, Side, of_comment};
use strata_wire::pcapng::options;

/// The first process that is known of each end.
#[derive(Clone, Debug, Default)]
pub(crate) struct Processes(Option<Box<[Option<Process>; 2]>>);

impl Processes {
    /// Looks into the options of a packet in a direction.
    pub(crate) fn look(&mut self, list: &[u8], direction: usize) {
        if list.is_empty() {
            return;
        }
        for (side, process) in options::comments(list).filter_map(of_comment) {
            let end = match side {
                Side::Sender => direction & 1,
                Side::Receiver => (direction & 1) ^ 1,
            };
            let known = self.0.get_or_insert_default();
            known[end].get_or_insert(process);
        }
    }

    /// The process of the end that sends packets in a direction.
    pub(crate) fn of(&self, direction: usize) -> Option<&Process> {
        self.0.as_deref()?.get(direction)?.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use strata_processes::push_comment;

    use super::*;

    #[test]
    fn each_end_has_its_first_process() {
        let process = |pid| Process {
            pid,
            name: "name".into(),
            cgroup: "".into(),
        };
        let list = |of: &[(Side, u32)]| {
            let mut list = Vec::new();
            options::push_comment(&mut list, "another comment").unwrap();
            for (side, pid) in of {
                push_comment(&mut list, *side, &process(*pid));
            }
            list
        };
        let mut processes = Processes::default();
        processes.look(&list(&[]), 0);
        assert!(processes.0.is_none());
        processes.look(&list(&[(Side::Receiver, 1)]), 1);
        processes.look(&list(&[(Side::Sender, 2), (Side::Receiver, 3)]), 0);
        assert_eq!(processes.of(0), Some(&process(1)));
        assert_eq!(processes.of(1), Some(&process(3)));
    }
}
