//! Grouped packet vectors at work: making, sending, receiving and keeping them. What vectors are, and what is
//! computed from them, is in `strata_gpv`; here are their sockets, files and clocks.
//!
//! ```text
//! agent     the role that receives vectors (`inbox`: one state for each sender; `datagrams` of others, as of a
//!           `directory` or of captured `frames`) and puts them together into records; where those go (`outputs`), in files that can be read
//!           if the program is killed (`parts`)
//! run       packets into vectors (`grouping`: a cache and a form), and those to where they go (`outlets`, and the peers
//!           in a file: `listed`)
//! table     packets into vectors in a Parquet file
//! tap       vectors of what a worker of a recording records, for those who are attached to it
//! ring      datagrams in memory that processes of one machine share
//! features  packets as a cache takes them
//! rows      vectors as rows of Parquet
//! rotation  files of limited size or time
//! form      how vectors are written
//! columns   what vectors say of packets, by name
//! seed      what strangers cannot know
//! error     what can go wrong
//! ```
//!
//! Who has packets gives them to `run` and `table`, since others ask the same captures, interfaces and logs. A
//! stream that vectors go to is given as a `strata_role::Feed`. Used by `record` (`tap`) and programs.
#![forbid(unsafe_code)]

mod agent;
mod columns;
mod error;
mod features;
mod form;
mod ring;
mod rotation;
mod rows;
mod run;
mod seed;
mod table;
mod tap;

pub use agent::{
    Datagrams, GivenRecord, ListenSpec, Received, RecordFileSpec, RecordOutput, RecordsSpec,
    Requests, Sender, Sent, VectorAgentOutcome, VectorAgentSpec, VectorDirectory, VectorReader,
    VectorSource, VectorsRead,
};
pub use columns::{CAPTURED_COLUMNS, COLUMN_NAMES, with_time};
pub use error::VectorError;
pub use features::{Counted, Features, Matches};
pub use form::Form;
pub use rotation::RotationSpec;
pub use run::{
    LiveVectors, OutletsSpec, ParseTargets, RingSpec, SentTo, Target, TargetList, VectorFile,
    VectorRun, VectorRunOutcome, VectorRunSpec,
};
pub use seed::seed;
pub use table::{Tabled, VectorTable};
pub use tap::VectorTap;
