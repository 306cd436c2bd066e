//! A running `strata collector`.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, ChildStderr, Command, Stdio};

use super::signal::signal;

/// A collector that listens.
pub(crate) struct Collector {
    child: Child,
    errors: BufReader<ChildStderr>,
    pub(crate) port: u16,
}

impl Collector {
    pub(crate) fn start(mut command: Command, arguments: &[&str]) -> Self {
        command.arg("collector").args(arguments);
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut errors = BufReader::new(child.stderr.take().unwrap());
        let mut said = String::new();
        while !said.contains("collecting on UDP") {
            assert!(errors.read_line(&mut said).unwrap() > 0, "{said}");
        }
        let (_, address) = said.split_once("collecting on UDP ").unwrap();
        let (address, _) = address.split_once(';').unwrap();
        let (_, port) = address.rsplit_once(':').unwrap();
        let port = port.parse().unwrap();
        Self {
            child,
            errors,
            port,
        }
    }

    /// What it says at its end, with success or not.
    pub(crate) fn ended_with(mut self, status: i32) -> String {
        let mut said = String::new();
        self.errors.read_to_string(&mut said).unwrap();
        assert_eq!(self.child.wait().unwrap().code(), Some(status), "{said}");
        said
    }

    pub(crate) fn ended(self) -> String {
        self.ended_with(0)
    }

    pub(crate) fn interrupt(&self) {
        signal(&self.child, "INT");
    }

    pub(crate) fn stopped(self) -> String {
        self.interrupt();
        self.ended()
    }
}

/// A test that fails leaves none behind.
impl Drop for Collector {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
