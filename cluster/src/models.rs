//! Many models on one port: read from a configuration file or named one after another, loaded when they are asked for, and
//! let go when others need their memory.
//!
//! [`entry`] is one model: what is known of it before it is loaded, and how it is. Which are loaded is decided by
//! [`paceline_core::fleet`], and carried out by [`actor`].

mod actor;
mod entry;
mod listing;

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};
use clap::parser::ValueSource;
use clap::{ArgAction, CommandFactory, Parser};
use paceline_core::fleet::{Berth, Budget, Fleet, Part};
use toml::{Table, Value};

use crate::cli::{Cli, EntryArgs, ServeArgs};
use crate::{config, host, layout, text};

pub(crate) use actor::Handle;
pub(crate) use entry::Entry;

/// The table in a configuration file that has one for each model.
pub(crate) const TABLE: &str = "models";

/// Flags that each model has for itself.
const OWN: [&str; 2] = ["alias", "cache-disk"];

/// What the command line and the configuration file say of models, if there are several or they have tables of their own.
/// `given` is the whole command line, with the flags of the file: what it says of all models holds for those that say
/// nothing else.
pub(crate) fn named(
    arguments: &ServeArgs,
    file: Option<&Path>,
    given: &[OsString],
) -> Result<Option<Vec<(String, EntryArgs)>>> {
    let tables = file.map(tables).transpose()?.unwrap_or_default();
    if tables.is_empty() && arguments.more_models.is_empty() {
        return Ok(None);
    }
    let common = common(given)?;
    let mut named = Vec::new();
    for Section { place, name, flags } in tables {
        let entry = EntryArgs::try_parse_from(common.iter().cloned().chain(flags)).map_err(|error| {
            let text = error.to_string();
            anyhow!("{place}: {}", text.lines().next().unwrap_or_default().trim_start_matches("error: "))
        })?;
        if entry.model.model.is_none() {
            bail!("{place} has no key model, the path of a file");
        }
        named.push((name, entry));
    }
    for path in arguments.model.model.iter().chain(&arguments.more_models) {
        let entry = EntryArgs::try_parse_from(common.iter().cloned().chain([path.clone().into_os_string()]))?;
        let name = path.file_stem().context("a model needs a name")?.to_string_lossy().into_owned();
        named.push((name, entry));
    }
    check_names(&named)?;
    Ok(Some(named))
}

/// The flags of `serve` that say something of models.
fn common(given: &[OsString]) -> Result<Vec<OsString>> {
    let matches = Cli::command().try_get_matches_from(given)?;
    let Some(serve) = matches.subcommand_matches("serve") else { return Ok(Vec::new()) };
    let mut flags = Vec::new();
    for argument in EntryArgs::command().get_arguments() {
        let (id, Some(long)) = (argument.get_id().as_str(), argument.get_long()) else { continue };
        let is_there = serve.try_contains_id(id).unwrap_or(false);
        if !is_there || serve.value_source(id) != Some(ValueSource::CommandLine) {
            continue;
        }
        if OWN.contains(&long) {
            bail!("--{long} is for one model; of several, each has its own in a table of a configuration file");
        }
        let flag = OsString::from(format!("--{long}"));
        if matches!(argument.get_action(), ArgAction::SetTrue) {
            flags.push(flag);
        } else {
            let values = serve.get_raw(id).into_iter().flatten();
            flags.extend(values.flat_map(|value| [flag.clone(), value.to_owned()]));
        }
    }
    Ok(flags)
}

/// A table of a configuration file.
struct Section {
    /// For people.
    place: String,
    name: String,
    /// Its keys as flags, the model at the end.
    flags: Vec<OsString>,
}

/// The models of a configuration file, in its order.
fn tables(path: &Path) -> Result<Vec<Section>> {
    let Some(models) = config::table(path)?.remove(TABLE) else { return Ok(Vec::new()) };
    let Value::Table(models) = models else { bail!("{}: {TABLE} must have a table for each model", path.display()) };
    let section = |(name, value): (String, Value)| {
        let place = format!("{}: [{TABLE}.{name}]", path.display());
        let Value::Table(table) = value else { bail!("{place} is no table") };
        let flags = flags_of(path, &table).with_context(|| place.clone())?;
        Ok(Section { place, name, flags })
    };
    models.into_iter().map(section).collect()
}

/// The keys of a table as flags, its model at the end.
fn flags_of(path: &Path, table: &Table) -> Result<Vec<OsString>> {
    let mut flags = Vec::new();
    for (key, value) in table.iter().filter(|(key, _)| *key != "model") {
        flags.extend(config::flag(path, key, value)?);
    }
    if let Some(model) = table.get("model") {
        flags.push(config::scalar(path, "model", model)?);
    }
    Ok(flags)
}

/// Every name means one model.
fn check_names(named: &[(String, EntryArgs)]) -> Result<()> {
    let mut owners: HashMap<&str, &str> = HashMap::new();
    for (name, entry) in named {
        let names = [std::slice::from_ref(name), &entry.alias, &entry.thinking_alias, &entry.plain_alias];
        for given in names.into_iter().flatten() {
            if let Some(other) = owners.insert(given, name) {
                bail!("the name {given:?} is given to {other:?} and to {name:?}; every name means one model");
            }
        }
    }
    Ok(())
}

/// Finds out what every model needs, and divides the memory.
pub(crate) fn plan(named: Vec<(String, EntryArgs)>, wanted: Option<u64>) -> Result<(Vec<Entry>, Fleet)> {
    let free = host::available_memory().map(|bytes| bytes.saturating_sub(layout::MARGIN));
    let total = wanted.or(free).unwrap_or(u64::MAX);
    if let (Some(wanted), Some(free)) = (wanted, free)
        && wanted > free
    {
        bail!("--models-memory is {}, and this host has {} free", text::bytes(wanted), text::bytes(free));
    }
    let part =
        |(name, entry): &(String, EntryArgs)| entry::part(name, entry).with_context(|| format!("the model {name:?}"));
    let parts: Vec<(Part, u64)> = named.iter().map(part).collect::<Result<_>>()?;
    let too_large = |error: paceline_core::fleet::TooLarge, names: &[String]| {
        let (name, needed, left) = (&names[error.place], text::bytes(error.needed), text::bytes(error.budget));
        anyhow!(
            "{name:?} needs {needed}, and of --models-memory it could have {left}; give it less --ctx or --sessions, or all models more memory"
        )
    };
    let names: Vec<String> = named.iter().map(|(name, _)| name.clone()).collect();
    // Models of texts are laid out in what those of vectors leave.
    let budget = Budget::divide(total, &parts).map_err(|error| too_large(error, &names))?;
    let entries = named.into_iter().map(|(name, arguments)| Entry::new(&name, arguments, budget.texts));
    let entries: Vec<Entry> = entries.collect::<Result<_>>()?;
    let berths = entries.iter().map(Entry::berth).collect::<Vec<Berth>>();
    let needs: Vec<(Part, u64)> = berths.iter().map(|berth| (berth.part, berth.memory)).collect();
    let budget = Budget::divide(total, &needs).map_err(|error| too_large(error, &names))?;
    Ok((entries, Fleet::new(berths, budget)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Command, LoadWhen};

    fn read_with(text: &str, flags: &[&str]) -> Result<Vec<(String, EntryArgs)>> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("models.toml");
        std::fs::write(&path, text)?;
        let given: Vec<OsString> = ["paceline", "serve"].iter().chain(flags).map(OsString::from).collect();
        let Command::Serve(arguments) = Cli::try_parse_from(&given)?.command else { bail!("it serves") };
        named(&arguments, Some(&path), &given)?.context("there are models")
    }

    fn read(text: &str) -> Result<Vec<(String, EntryArgs)>> {
        read_with(text, &[])
    }

    #[test]
    fn what_is_said_of_all_models_holds_where_they_say_nothing_else() {
        let text = "[models.one]\nmodel = 'a.gguf'\nctx = 100\n[models.two]\nmodel = 'b.gguf'\n";
        let flags = ["--ctx", "200", "--pin", "--thinking", "off", "--port", "1", "c.gguf", "d.gguf"];
        let named = read_with(text, &flags).expect("good flags");
        let told = named.iter().map(|(name, entry)| (name.as_str(), entry.layout.ctx, entry.compute.pin));
        let expected = [("one", 100), ("two", 200), ("c", 200), ("d", 200)].map(|(name, ctx)| (name, Some(ctx), true));
        assert!(told.eq(expected), "{named:?}");
        assert!(named.iter().all(|(_, entry)| entry.answers.thinking.is_some() && entry.layout.sessions == 8));
        for flag in [["--alias", "x"], ["--cache-disk", "/tmp/x:1G"]] {
            let error = read_with(text, &flag).expect_err("not for several").to_string();
            assert!(error.contains("is for one model"), "{error}");
        }
    }

    #[test]
    fn every_table_is_a_model_with_keys_that_are_flags() {
        let named = read(
            "[serve]\nport = 9000\n\
             [models.chat]\nmodel = 'a.gguf'\nalias = ['x', 'y']\nctx = 4096\nload = 'at-start'\nkv-type = 'q8_0'\nidle = 60\n\
             [models.a-vectors]\nmodel = 'b.gguf'\ndevice = 'none'\npooling = 'mean'\n",
        )
        .expect("a good file");
        let [(chat, first), (vectors, second)] = &named[..] else { panic!("two models: {named:?}") };
        assert_eq!((chat.as_str(), vectors.as_str()), ("chat", "a-vectors"));
        assert_eq!((first.alias.len(), first.layout.ctx, first.idle), (2, Some(4096), Some(60)));
        assert_eq!((first.load, second.load), (LoadWhen::AtStart, LoadWhen::OnDemand));
        assert!(second.pooling.is_some());
    }

    #[test]
    fn what_is_wrong_is_said_with_the_place() {
        for (text, problem) in [
            ("models = 5", "models must have a table for each model"),
            ("[models]\nchat = 5", "[models.chat] is no table"),
            ("[models.chat]\nctx = 5", "[models.chat] has no key model"),
            ("[models.chat]\nmodel = 'a'\nport = 5", "[models.chat]: unexpected argument '--port'"),
            ("[models.chat]\nmodel = 'a'\nload = 'soon'", "[models.chat]: invalid value 'soon'"),
            ("[models.chat]\nmodel = 'a'\ndevice = 'tape'", "[models.chat]: invalid value 'tape'"),
            (
                "[models.a]\nmodel = 'a'\n[models.b]\nmodel = 'b'\nalias = ['a']",
                "the name \"a\" is given to \"a\" and to \"b\"",
            ),
        ] {
            let error = format!("{:#}", read(text).expect_err("a bad file"));
            assert!(error.contains(problem), "{text}: {error}");
        }
    }
}
