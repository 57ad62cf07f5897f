//! Many models on one port: read from a configuration file or named one after another, loaded when they are asked for, and
//! let go when others need their memory.
//!
//! [`entry`] is one model: what is known of it before it is loaded, and how it is. Which are loaded is decided by
//! [`paceline_core::fleet`], and carried out by [`actor`].

mod actor;
mod entry;
mod listing;

use std::collections::HashMap;
use std::path::Path;

use anyhow::{Context, Result, bail};
use clap::Parser;
use paceline_core::fleet::{Berth, Budget, Fleet, Part};
use toml::{Table, Value};

use crate::cli::{EntryArgs, ServeArgs};
use crate::{config, host, layout, text};

pub(crate) use actor::Handle;
pub(crate) use entry::Entry;

/// The table in a configuration file that has one for each model.
pub(crate) const TABLE: &str = "models";

/// What the command line and the configuration file say of models, if there are several or they have tables of their own.
pub(crate) fn named(arguments: &ServeArgs, file: Option<&Path>) -> Result<Option<Vec<(String, EntryArgs)>>> {
    let mut named = file.map(tables).transpose()?.unwrap_or_default();
    if named.is_empty() && arguments.more_models.is_empty() {
        return Ok(None);
    }
    let first = arguments.model.model.iter();
    for path in first.chain(&arguments.more_models) {
        let mut entry = EntryArgs::try_parse_from([path])?;
        (entry.layout, entry.compute) = (arguments.layout.clone(), arguments.compute.clone());
        entry.pooling = arguments.pooling;
        let name = path.file_stem().context("a model needs a name")?.to_string_lossy().into_owned();
        named.push((name, entry));
    }
    check_names(&named)?;
    if !arguments.api.alias.is_empty() {
        bail!("--alias is for one model; with several, give each its names in a configuration file");
    }
    Ok(Some(named))
}

/// The models of a configuration file, in its order.
fn tables(path: &Path) -> Result<Vec<(String, EntryArgs)>> {
    let Some(models) = config::table(path)?.remove(TABLE) else { return Ok(Vec::new()) };
    let Value::Table(models) = models else { bail!("{}: {TABLE} must have a table for each model", path.display()) };
    let entry = |(name, value): (String, Value)| {
        let place = || format!("{}: [{TABLE}.{name}]", path.display());
        let Value::Table(table) = value else { bail!("{} is no table", place()) };
        let flags = flags_of(path, &table).with_context(place)?;
        let arguments = EntryArgs::try_parse_from(flags).map_err(|error| {
            let text = error.to_string();
            anyhow::anyhow!("{}: {}", place(), text.lines().next().unwrap_or_default().trim_start_matches("error: "))
        })?;
        if arguments.model.model.is_none() {
            bail!("{} has no key model, the path of a file", place());
        }
        Ok((name, arguments))
    };
    models.into_iter().map(entry).collect()
}

/// The keys of a table as flags, its model at the end.
fn flags_of(path: &Path, table: &Table) -> Result<Vec<std::ffi::OsString>> {
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
        anyhow::anyhow!(
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
    use crate::cli::LoadWhen;

    fn read(text: &str) -> Result<Vec<(String, EntryArgs)>> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("models.toml");
        std::fs::write(&path, text)?;
        let named = tables(&path)?;
        check_names(&named)?;
        Ok(named)
    }

    #[test]
    fn every_table_is_a_model_with_keys_that_are_flags() {
        let named = read(
            "[serve]\nport = 9000\n\
             [models.chat]\nmodel = 'a.gguf'\nalias = ['x', 'y']\nctx = 4096\nload = 'at-start'\nkv-type = 'q8_0'\nidle = 60\n\
             [models.vectors]\nmodel = 'b.gguf'\ndevice = 'none'\npooling = 'mean'\n",
        )
        .expect("a good file");
        let [(chat, first), (vectors, second)] = &named[..] else { panic!("two models: {named:?}") };
        assert_eq!((chat.as_str(), vectors.as_str()), ("chat", "vectors"));
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
            ("[models.chat]\nmodel = 'a'\ndevice = 'cuda:0'", "[models.chat]: invalid value 'cuda:0'"),
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
