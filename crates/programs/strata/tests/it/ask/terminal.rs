//! Asking at a terminal: the answer so far, in the size that the terminal has.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::thread;

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use super::live::{FAR, Running, namespace, replay, until, within};
use crate::common::naive::FILTER;

/// The end of a terminal at which a person sits.
struct Terminal {
    keys: File,
    seen: Arc<Mutex<Vec<u8>>>,
    /// What the program gets.
    program: File,
}

impl Terminal {
    fn new(rows: u16, columns: u16) -> Self {
        let keys = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&keys).unwrap();
        unlockpt(&keys).unwrap();
        let name = ptsname(&keys, Vec::new()).unwrap();
        let mut options = OpenOptions::new();
        let program = options.read(true).write(true);
        let program = program.open(name.to_str().unwrap()).unwrap();
        let keys = File::from(keys);
        let seen = Arc::<Mutex<Vec<u8>>>::default();
        let (mut screen, into) = (keys.try_clone().unwrap(), Arc::clone(&seen));
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            // Fails once the program and this test have closed the other end.
            while let Ok(len @ 1..) = screen.read(&mut bytes) {
                into.lock().unwrap().extend_from_slice(&bytes[..len]);
            }
        });
        let terminal = Self {
            keys,
            seen,
            program,
        };
        terminal.resize(rows, columns);
        terminal
    }

    fn resize(&self, rows: u16, columns: u16) {
        let size = Winsize {
            ws_row: rows,
            ws_col: columns,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&self.keys, size).unwrap();
    }

    fn press(&mut self, key: u8) {
        self.keys.write_all(&[key]).unwrap();
    }

    /// What was shown, by the times that the screen was drawn from its top.
    fn pages(&self) -> Vec<String> {
        let text = String::from_utf8_lossy(&self.seen.lock().unwrap()).into_owned();
        text.split("\x1b[H").skip(1).map(str::to_owned).collect()
    }

    /// Lines of the last page that is complete, without what moves the cursor.
    fn page(&self) -> Vec<String> {
        let pages = self.pages();
        let whole = pages.iter().rev().find(|page| page.ends_with("\x1b[J"));
        let page = whole.map_or("", |page| page.trim_end_matches("\x1b[J"));
        let lines = page
            .lines()
            .map(|line| line.replace("\x1b[K", "").replace("\x1b[2J", ""));
        lines.map(|line| line.trim_end().to_owned()).collect()
    }
}

#[test]
fn the_answer_so_far_fits_the_terminal_and_gives_way_to_the_last_one() {
    let Some(namespace) = namespace("t") else {
        return;
    };
    let mut terminal = Terminal::new(12, 100);
    // `setsid -c` makes it the terminal of the program, so that Ctrl-C is a signal.
    let command = within(&namespace);
    let program = command.get_args().last().unwrap().to_owned();
    let mut command = std::process::Command::new("setsid");
    command.args(["-c", "ip", "netns", "exec", namespace.name()]);
    command
        .arg(program)
        .args(["ask", "-i", FAR, "byte-counts-per-flow", FILTER]);
    command.stdin(Stdio::from(terminal.program.try_clone().unwrap()));
    command.stdout(Stdio::from(terminal.program.try_clone().unwrap()));
    let mut asking = Running::start(&mut command);
    drop(command);
    until("shown", || {
        replay(&namespace, &["--topspeed"]);
        terminal.page().len() > 2
    });
    let page = terminal.page();
    assert!(page[0].starts_with("srcip "), "{page:?}");
    assert!(page.len() <= 12, "{page:?}");
    terminal.resize(6, 40);
    until("shown in another size", || {
        let page = terminal.page();
        page.len() == 6 && page[5].contains("more lines")
    });
    let page = terminal.page();
    assert!(
        page.iter().all(|line| line.chars().count() <= 40),
        "{page:?}"
    );
    // A terminal that does not know its size.
    terminal.resize(0, 0);
    let drawn = terminal.pages().len();
    until("shown in no size", || terminal.pages().len() > drawn + 1);
    terminal.resize(50, 120);
    terminal.press(3);
    let said = asking.ended(0);
    assert!(
        said.contains("processed") && !said.contains('\x1b'),
        "{said}"
    );
    // The answer is there once: what was shown before is gone.
    until("answered", || {
        let last = terminal.pages().pop().unwrap();
        last.starts_with("\x1b[2J") && last.lines().count() > 2
    });
    let last = terminal.pages().pop().unwrap();
    assert_eq!(last.matches("srcip").count(), 1, "{last:?}");
    assert!(!last.contains("more lines"), "{last:?}");
}
