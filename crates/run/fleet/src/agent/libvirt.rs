//! Which virtual machine has a tap interface, as libvirt's files say.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use quick_xml::Reader;
use quick_xml::events::{BytesStart, Event};

/// Of machines that run, and of all that are defined: only the first name what libvirt chose itself.
const DIRS: [&str; 2] = ["/run/libvirt/qemu", "/etc/libvirt/qemu"];
/// Files of a directory, and bytes of each.
const FILES_MAX: usize = 4096;
const FILE_BYTES: u64 = 1 << 20;
/// Elements within each other.
const DEPTH_MAX: usize = 64;

/// Names of machines, by the interface of this host that each has.
pub(super) fn machines() -> BTreeMap<String, String> {
    machines_in(&DIRS.map(Path::new))
}

fn machines_in(dirs: &[&Path]) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    for dir in dirs {
        let entries = fs::read_dir(dir).into_iter().flatten().take(FILES_MAX);
        for path in entries.flatten().map(|entry| entry.path()) {
            let is_xml = path.extension().is_some_and(|kind| kind == "xml");
            let fits = fs::metadata(&path).is_ok_and(|it| it.is_file() && it.len() <= FILE_BYTES);
            if is_xml
                && fits
                && let Ok(text) = fs::read_to_string(&path)
                && let Some((machine, interfaces)) = machine(&text)
            {
                for interface in interfaces {
                    all.entry(interface).or_insert_with(|| machine.clone());
                }
            }
        }
    }
    all
}

fn attribute(element: &BytesStart<'_>, name: &str) -> Option<String> {
    let value = element.try_get_attribute(name).ok()??;
    Some(value.unescape_value().ok()?.into_owned())
}

/// A machine's name, and its interfaces on this host (`<domain><name>`, `<interface><target dev=...>`);
/// `None` if the text is no description of one.
fn machine(text: &str) -> Option<(String, Vec<String>)> {
    let mut reader = Reader::from_str(text);
    let (mut open, mut name, mut interfaces) = (Vec::new(), None, Vec::new());
    loop {
        let event = reader.read_event().ok()?;
        if let Event::Start(element) | Event::Empty(element) = &event
            && element.name().as_ref() == b"target"
            && open.last().is_some_and(|last| last == b"interface")
        {
            interfaces.extend(attribute(element, "dev"));
        }
        match event {
            Event::Start(element) if open.len() < DEPTH_MAX => {
                open.push(element.name().as_ref().to_vec());
            }
            Event::Start(_) => return None,
            Event::End(_) => drop(open.pop()),
            Event::Text(text)
                if name.is_none() && open.ends_with(&[b"domain".to_vec(), b"name".to_vec()]) =>
            {
                name = Some(text.decode().ok()?.trim().to_owned());
            }
            Event::Eof => return Some((name?, interfaces)),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As libvirt writes the status of a machine that runs, shortened.
    const STATUS: &str = "<!-- do not edit -->
<domstatus state='running' reason='booted' pid='4711'>
  <monitor path='/var/lib/libvirt/qemu/domain-1-blue/monitor.sock' type='unix'/>
  <domain type='kvm' id='1'>
    <name>blue-1</name>
    <metadata><x:name xmlns:x='urn:x'>other</x:name></metadata>
    <devices>
      <disk type='file'><target dev='vda' bus='virtio'/></disk>
      <interface type='network'>
        <mac address='52:54:00:11:22:33'/>
        <target dev='vnet0'/>
      </interface>
      <interface type='bridge'><target dev='vnet1' managed='no'></target></interface>
    </devices>
  </domain>
</domstatus>";

    #[test]
    fn a_machine_has_the_interfaces_of_its_description() {
        let found = machine(STATUS).unwrap();
        assert_eq!(
            found,
            ("blue-1".into(), vec!["vnet0".into(), "vnet1".into()])
        );
        for odd in [
            "",
            "<domain>",
            "<network><name>x</name></network>",
            "no xml",
            "<a></b>",
        ] {
            assert_eq!(machine(odd), None, "{odd}");
        }
        assert_eq!(machine(&"<a>".repeat(10_000)), None);
    }

    #[test]
    fn machines_that_run_come_before_those_that_are_defined() {
        let dir = tempfile::tempdir().unwrap();
        let [run, etc] = ["run", "etc"].map(|name| dir.path().join(name));
        for (path, text) in [
            (&run, STATUS.to_owned()),
            (
                &etc,
                STATUS.replace("blue-1", "old").replace("vnet1", "tap7"),
            ),
        ] {
            fs::create_dir(path).unwrap();
            fs::write(path.join("blue.xml"), text).unwrap();
            fs::write(path.join("blue.txt"), STATUS.replace("vnet", "no")).unwrap();
        }
        let found = machines_in(&[&run, &etc, &dir.path().join("none")]);
        let expected = [("tap7", "old"), ("vnet0", "blue-1"), ("vnet1", "blue-1")];
        let expected = expected.map(|(one, other)| (one.to_owned(), other.to_owned()));
        assert_eq!(found, BTreeMap::from(expected));
    }
}
