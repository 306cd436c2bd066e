//! A process as a comment of a packet: `src pid=4711 cgroup=/nginx.service process=nginx`.

use strata_wire::pcapng::options;

/// Names of processes have 15 bytes in the kernel.
const NAME_MAX: usize = 64;
/// Paths of cgroups are cut.
pub(crate) const CGROUP_MAX: usize = 1_024;

/// A process of this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Its number, outside of all containers.
    pub pid: u32,
    /// Its name: that of its program, at most 15 characters, unless it has changed it. Printable ASCII; other bytes are
    /// dots.
    pub name: Box<str>,
    /// The path of its cgroup (version 2) without the `/` at its beginning, at most 1,024 characters: a systemd unit, or
    /// that of a container, which has the container's number. `#NUMBER` if the cgroup was made after the start. As
    /// printable as `name`, without spaces.
    pub cgroup: Box<str>,
}

/// Whose process it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The sender's.
    Sender,
    /// The receiver's.
    Receiver,
}

impl Side {
    /// 0 for the sender, 1 for the receiver.
    fn number(self) -> usize {
        match self {
            Self::Sender => 0,
            Self::Receiver => 1,
        }
    }

    fn word(self) -> &'static str {
        match self {
            Self::Sender => "src",
            Self::Receiver => "dst",
        }
    }
}

/// Appends a process to the options of a packet, as a comment.
pub fn push_comment(list: &mut Vec<u8>, side: Side, process: &Process) {
    let Process { pid, name, cgroup } = process;
    let text = format!("{} pid={pid} cgroup=/{cgroup} process={name}", side.word());
    // Its parts are bounded, so it fits.
    let _ = options::push_comment(list, &text);
}

/// The process that a comment names; `None` for other comments.
#[must_use]
pub fn of_comment(text: &str) -> Option<(Side, Process)> {
    let (side, text) = text.split_once(" pid=")?;
    let side = [Side::Sender, Side::Receiver]
        .into_iter()
        .find(|of| of.word() == side)?;
    let (pid, text) = text.split_once(" cgroup=/")?;
    let (cgroup, name) = text.split_once(" process=")?;
    let is_printable = |text: &str| text.bytes().all(|byte| matches!(byte, b' '..=b'~'));
    let is_valid = cgroup.len() <= CGROUP_MAX
        && name.len() <= NAME_MAX
        && is_printable(name)
        && is_printable(cgroup)
        && !cgroup.contains(' ');
    let process = Process {
        pid: pid.parse().ok()?,
        name: name.into(),
        cgroup: cgroup.into(),
    };
    is_valid.then_some((side, process))
}

/// The processes that comments in the options of a packet name: the sender's and the receiver's. Of several of one side,
/// the first.
#[must_use]
pub fn of_options(list: &[u8]) -> [Option<Process>; 2] {
    let mut found = [None, None];
    if list.is_empty() {
        return found;
    }
    for (side, process) in options::comments(list).filter_map(of_comment) {
        found[side.number()].get_or_insert(process);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(name: &str, cgroup: &str) -> Process {
        Process {
            pid: 4_711,
            name: name.into(),
            cgroup: cgroup.into(),
        }
    }

    #[test]
    fn comments_come_back() {
        let name = "my prog process=";
        for (side, process) in [
            (Side::Sender, process("nginx", "nginx.service")),
            (Side::Receiver, process(name, "")),
        ] {
            let mut list = Vec::new();
            push_comment(&mut list, side, &process);
            let texts: Vec<&str> = options::comments(&list).collect();
            assert_eq!(texts.len(), 1);
            assert_eq!(of_comment(texts[0]), Some((side, process)));
        }
        let mut list = Vec::new();
        push_comment(&mut list, Side::Sender, &process("nginx", "nginx.service"));
        let text = "src pid=4711 cgroup=/nginx.service process=nginx";
        assert_eq!(options::comments(&list).next(), Some(text));
    }

    #[test]
    fn other_comments_are_no_processes() {
        for text in [
            "",
            "a comment",
            "src pid=",
            "src pid=x cgroup=/a process=b",
            "src pid=1 cgroup=/a b process=c",
            "src pid=1 cgroup=a process=b",
            "any pid=1 cgroup=/a process=b",
            "src pid=4294967296 cgroup=/a process=b",
            "src pid=1 cgroup=/a process=\x1b[2J",
        ] {
            assert_eq!(of_comment(text), None, "{text:?}");
        }
    }
}
