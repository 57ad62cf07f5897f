//! `paceline token`: the tokens with which shards join. It works on the coordinator's folder, so it is for whoever may
//! read that; a running coordinator sees every change at once.

use std::io::Write;

use anyhow::{Context, Result, bail};
use paceline_transport::identity::{JoinToken, TokenId};

use crate::cli::{TokenArgs, TokenCommand};
use crate::state::{State, TokenRecord};

/// Lists, makes or revokes tokens.
pub(crate) fn token(arguments: &TokenArgs) -> Result<()> {
    let state = State::open(arguments.state.folder.as_deref())?;
    let mut output = std::io::stdout();
    match &arguments.command {
        None => output.write_all(list(&state.tokens().list()?, false).as_bytes())?,
        Some(TokenCommand::List { json: false, show }) => {
            output.write_all(list(&state.tokens().list()?, *show).as_bytes())?;
        }
        Some(TokenCommand::List { json: true, .. }) => {
            let records: Vec<_> = state.tokens().list()?.iter().map(as_json).collect();
            serde_json::to_writer_pretty(&output, &records)?;
            writeln!(output)?;
        }
        Some(TokenCommand::Create { address, label }) => {
            let token = state.tokens().create(address, &state.authority()?, label)?;
            writeln!(output, "{token}")?;
        }
        Some(TokenCommand::Revoke { id }) => {
            let parsed: TokenId = id.parse().with_context(|| format!("{id} is not the id of a token"))?;
            if !state.tokens().revoke(&parsed)? {
                bail!("there is no token {id}: `paceline token` lists them");
            }
            writeln!(output, "token {id} is revoked")?;
        }
    }
    Ok(())
}

/// A token with the address that it names.
fn as_json(record: &TokenRecord) -> serde_json::Value {
    let address = record.token.parse::<JoinToken>().map(|token| token.address).ok();
    let TokenRecord { id, token, label, created, revoked, .. } = record;
    serde_json::json!({
        "id": id, "label": label, "address": address, "created": created, "revoked": revoked, "token": token,
    })
}

fn list(records: &[TokenRecord], show: bool) -> String {
    if records.is_empty() {
        return "no tokens: a coordinator makes one when it starts\n".to_owned();
    }
    let line = |record: &TokenRecord| {
        let state = match record.revoked {
            true => "revoked",
            false if show => &record.token,
            false => "live",
        };
        format!("{}  {:<10}  {state}\n", record.id, record.label)
    };
    records.iter().map(line).collect()
}
