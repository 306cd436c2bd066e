//! Labels of packets: what a data set, an IDS or a user says that they are.
//!
//! - [`Labels`]: label files of any format, and the label of each packet;
//! - [`read`]: labelled captures and logs, packet by packet, as the data path sees them;
//! - [`matching`], [`whole`], [`ConnLog`]: flows of a log that a user names, and the file that they are
//!   labelled in.
//!
//! ```text
//! captured       captures and logs with labels
//! chosen         flows of a log, and when they had packets
//! conn_log       a file of labels that is added to
//! labels         all labels of the files that are given
//! ids            alerts of an IDS: Suricata's EVE events, Zeek's notice.log and conn.log
//! flows          the flow CSVs of CICFlowMeter, and Zeek's conn.log with labels
//! rules frames   CSV of conditions; CSV by packet number
//! label cells    a label; rows, times and protocols as data sets write them
//! error          what is wrong with a file, its line and its place
//! ```
//!
//! Nothing here prints. Above `query`; used by the command line.
#![forbid(unsafe_code)]

mod captured;
mod cells;
mod chosen;
mod conn_log;
mod error;
mod flows;
mod frames;
mod ids;
mod label;
mod labels;
mod rules;

pub use captured::{Captures, OfLogs, ReadCounts, ReadError, ReadOptions, Seen, read};
pub use chosen::{Choice, ChoiceError, Flows, Span, labelled, matching, whole};
pub use conn_log::{Changes, ConnLog, ConnLogError};
pub use error::{ContentError, LabelError, LineError, Problem, UsageError, ValueError};
pub use ids::{AlertClass, Options as AlertOptions};
pub use label::{ClassError, Label, class_name};
pub use labels::{How, LabelFile, Labels, Usage};
