//! `strata model promote`: the shadow of a running recording decides, or a file takes another's
//! place; and back.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use serde_json::Value;
use strata_classify::Model;
use strata_control::{InForce, ModelRequest};
use strata_terminal::output::{refuse, standard};
use strata_terminal::recording::RecordingArgs;
use strata_wire::Printable;

/// Added to the name of a model that was replaced.
const BEFORE: &str = ".before";

/// Arguments of `strata model promote`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  strata model promote --why 'two weeks in the shadow'
  strata model promote new.json model.json
  strata model promote --back
  strata model promote --back model.json

Without files, the shadow model of a running recording (strata record --shadow) decides from the
next packet on, and the model that the recording was started with becomes the shadow. The recording
continues: flows keep their counters, and the log shows for each packet which model decided. A new
recording starts with the model files on its own command line.

With files, NEW takes the place of FILE, which is kept as FILE.before. A recording reads its model
only when it starts.")]
pub(crate) struct Args {
    /// Put the model file NEW in the place of the model file FILE.
    #[arg(value_names = ["NEW", "FILE"], num_args = 0..=2)]
    files: Vec<PathBuf>,

    /// Go back to the model that the recording was started with; or, with FILE, exchange FILE and
    /// FILE.before.
    #[arg(long)]
    back: bool,

    /// Promote a model even if it missed the targets of its training, or learnt from too little
    /// traffic.
    #[arg(long)]
    force: bool,

    /// Give a reason, which `strata status` shows with the event.
    #[arg(long, default_value = "")]
    why: String,

    #[command(flatten)]
    recording: RecordingArgs,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    match (&args.files[..], args.back) {
        ([], back) => of_recording(args, back),
        ([new, file], false) => replace(new, file, args.force),
        ([file], true) => back_to(file),
        ([_], false) => Err(refuse(
            "only one file is named: name the model to promote and the file to replace, as in \
             `strata model promote NEW FILE`",
        )),
        _ => Err(refuse("--back takes one file: the file to restore")),
    }
}

/// Changes which model of a running recording decides.
fn of_recording(args: &Args, back: bool) -> Result<()> {
    let in_force = if back { InForce::Own } else { InForce::Shadow };
    let status = args.recording.client()?.set_model(&ModelRequest {
        in_force,
        why: args.why.clone(),
    })?;
    let models = status.shadow.and_then(|shadow| shadow.models);
    match models {
        Some(models) => writeln!(
            standard(),
            "model {} is in force; {} is the shadow",
            Printable(&models.in_force),
            Printable(&models.in_shadow)
        )?,
        // Nothing has been compared yet.
        None => writeln!(standard(), "the other model is in force")?,
    }
    Ok(())
}

/// Where a model that was replaced is kept.
fn before(file: &Path) -> PathBuf {
    let mut name = OsString::from(file);
    name.push(BEFORE);
    name.into()
}

/// Where a file lies, so that links to it stay links.
fn real(file: &Path) -> Result<PathBuf> {
    match fs::canonicalize(file) {
        Ok(real) => Ok(real),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(file.to_owned()),
        Err(error) => Err(error).with_context(|| format!("{}: cannot read", file.display())),
    }
}

/// Puts a model in the place of another, which is kept.
fn replace(new: &Path, file: &Path, force: bool) -> Result<()> {
    let json = fs::read(new).with_context(|| format!("{}: cannot read", new.display()))?;
    let model = Model::from_json(&json).with_context(|| new.display().to_string())?;
    let findings = missed(&serde_json::from_slice(&json)?);
    if !findings.is_empty() && !force {
        bail!(
            "{}: its training missed its targets: {}; --force promotes it anyway",
            new.display(),
            Printable(&findings.join("; "))
        );
    }
    let file = real(file)?;
    let replaced = match fs::read(&file) {
        Ok(old) if old == json => {
            writeln!(
                standard(),
                "{}: this file is already this model",
                file.display()
            )?;
            return Ok(());
        }
        Ok(old) => Some(old),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => {
            return Err(error).with_context(|| format!("{}: cannot read", file.display()));
        }
    };
    if let Some(old) = &replaced {
        let kept = before(&file);
        put(&kept, old, &file).with_context(|| format!("{}: cannot write", kept.display()))?;
    }
    let like = if replaced.is_some() { &file } else { new };
    put(&file, &json, like).with_context(|| format!("{}: cannot write", file.display()))?;
    let mut out = standard();
    writeln!(out, "{}: model {}", file.display(), Printable(&model.name))?;
    let Some(old) = replaced else {
        return Ok(());
    };
    writeln!(out, "{}: the previous model", before(&file).display())?;
    let (classes, earlier) = (model.class_names(), Model::classes_of(&old));
    let earlier = earlier.map(|list| list.into_iter().map(|class| class.name).collect::<Vec<_>>());
    if let Ok(earlier) = earlier
        && earlier != classes
    {
        let (classes, earlier) = (classes.join(", "), earlier.join(", "));
        let text = format!("its classes are {classes}; previously they were {earlier}");
        writeln!(
            out,
            "{}: modes that name classes may not fit",
            Printable(&text)
        )?;
    }
    Ok(())
}

/// What a model did not do in training, as its file says.
fn missed(model: &Value) -> Vec<String> {
    let texts = |list: &Value| -> Vec<String> {
        let list = list.as_array().into_iter().flatten();
        list.filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let (training, mut all) = (&model["training"], Vec::new());
    if training["verdict"]["met"] == false {
        all = texts(&training["verdict"]["findings"]);
        if all.is_empty() {
            all.push(String::from("its verdict is 'missed'"));
        }
    }
    all.extend(texts(&training["learnt"]["problems"]));
    all
}

/// Replaces a file at once, with the owner and permissions of `like`.
fn put(path: &Path, content: &[u8], like: &Path) -> std::io::Result<()> {
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty());
    let dir = dir.unwrap_or(Path::new("."));
    let mut next = tempfile::NamedTempFile::new_in(dir)?;
    next.write_all(content)?;
    let of = fs::metadata(like)?;
    fs::set_permissions(next.path(), fs::Permissions::from_mode(of.mode() & 0o7777))?;
    // Only root may give files away; for others it is theirs anyway.
    let _ = chown(next.path(), Some(of.uid()), Some(of.gid()));
    next.as_file().sync_all()?;
    next.persist(path)?;
    File::open(dir)?.sync_all()
}

/// Exchanges a model and the one before it.
fn back_to(file: &Path) -> Result<()> {
    let file = real(file)?;
    let kept = before(&file);
    let json = match fs::read(&kept) {
        Ok(json) => json,
        Err(error) if error.kind() == ErrorKind::NotFound => bail!(
            "{}: does not exist, so there is no earlier model to restore: `strata model \
             promote NEW {}` keeps the replaced model there",
            kept.display(),
            file.display()
        ),
        Err(error) => {
            return Err(error).with_context(|| format!("{}: cannot read", kept.display()));
        }
    };
    let model = Model::from_json(&json).with_context(|| kept.display().to_string())?;
    renameat_with(CWD, &kept, CWD, &file, RenameFlags::EXCHANGE).with_context(|| {
        format!(
            "{}: cannot exchange it with {}",
            file.display(),
            kept.display()
        )
    })?;
    let mut out = standard();
    writeln!(out, "{}: model {}", file.display(), Printable(&model.name))?;
    writeln!(out, "{}: the one it replaces", kept.display())?;
    Ok(())
}
