//! What the roles of telemetry say.

use std::net::SocketAddr;
use std::path::Path;

use strata_role::{Level, Notice};

/// Where reports come in, and how.
pub(crate) struct Reports<'a> {
    pub(crate) address: SocketAddr,
    /// How they are taken past the host's network stack, if they are.
    pub(crate) way: Option<&'a str>,
    /// Where telemetry reports of INT come in.
    pub(crate) int: Option<SocketAddr>,
}

impl Reports<'_> {
    fn text(&self) -> String {
        let mut text = format!("reports on UDP {}", self.address);
        if let Some(way) = self.way {
            text = format!("{text} ({way})");
        }
        match self.int {
            Some(int) => format!("{text}, of INT on UDP {int}"),
            None => text,
        }
    }

    /// A collector in one process takes them from now on.
    pub(crate) fn stored(&self, store: &Path, continued: bool) -> Notice {
        let (text, store) = (self.text(), store.display());
        let what = if continued { "continues" } else { "new" };
        Notice::serving(self.address, format!("{text}, store in {store} ({what})"))
    }

    /// A translator takes them from now on, whose collectors are elsewhere.
    pub(crate) fn translated(&self, collectors: &[SocketAddr], dir: &Path) -> Notice {
        let collectors: Vec<String> = collectors.iter().map(ToString::to_string).collect();
        let (collectors, dir) = (collectors.join(", "), dir.display());
        let text = format!(
            "{}, to {collectors} by RoCEv2; counters in {dir}",
            self.text()
        );
        Notice::serving(self.address, text)
    }
}

/// A collector takes translators from now on.
pub(crate) fn collecting(address: SocketAddr, store: &Path, continued: bool) -> Notice {
    let what = match continued {
        true => "continues",
        false => "created when a translator connects",
    };
    let store = store.display();
    let text =
        format!("translators on TCP {address}, RoCEv2 on UDP {address}, store in {store} ({what})");
    Notice::serving(address, text)
}

/// A translator's collector is there, or away, and why.
pub(crate) fn collector(address: SocketAddr, away: Option<&str>) -> Notice {
    match away {
        None => Notice::info("collector", format!("collector {address}: connected")),
        Some(why) => {
            let text = format!(
                "a collector is not connected, and its share of the reports is dropped: {why}"
            );
            Notice::new(Level::Warning, "collector", text)
        }
    }
}

/// A collector's translator is there, or gone, and why.
pub(crate) fn translator(address: SocketAddr, gone: Option<&str>) -> Notice {
    let text = match gone {
        None => format!("translator {address}: connected"),
        Some(why) => format!("translator disconnected: {why}"),
    };
    Notice::info("translator", text)
}
