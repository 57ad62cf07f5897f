//! The pool against a naive map from session to pages.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

/// What is done to a pool; numbers choose among the sessions there are.
#[derive(Debug, Clone)]
enum Deed {
    Reserve(usize),
    Grant(usize, usize),
    Release(usize),
    AddReference(usize),
    DropReference(usize),
}

fn deed() -> impl Strategy<Value = Deed> {
    prop_oneof![
        (0usize..12).prop_map(Deed::Reserve),
        (any::<usize>(), 0usize..5).prop_map(|(which, pages)| Deed::Grant(which, pages)),
        any::<usize>().prop_map(Deed::Release),
        any::<usize>().prop_map(Deed::AddReference),
        any::<usize>().prop_map(Deed::DropReference),
    ]
}

/// The obvious pool: who has which page, and what was promised.
struct Naive {
    total: usize,
    holders: BTreeMap<PageId, u32>,
    tables: Vec<PageTable>,
    extra: Vec<PageId>,
}

impl Naive {
    fn promised(&self) -> usize {
        self.tables.iter().map(PageTable::reserved).sum()
    }

    fn give_up(&mut self, page: PageId) {
        let holders = self.holders.get_mut(&page).expect("held");
        *holders -= 1;
        self.holders.retain(|_, holders| *holders > 0);
    }

    fn act(&mut self, pool: &mut PagePool, deed: &Deed) {
        match *deed {
            Deed::Reserve(pages) => {
                let fits = pages + self.promised() + self.holders.len() <= self.total;
                let table = pool.reserve(pages);
                assert_eq!(table.is_some(), fits);
                self.tables.extend(table);
            }
            Deed::Grant(which, pages) if !self.tables.is_empty() => {
                let which = which % self.tables.len();
                let table = &mut self.tables[which];
                let pages = pages.min(table.reserved());
                for page in pool.grant(table, pages) {
                    assert_eq!(self.holders.insert(*page, 1), None, "a page in use was granted");
                }
            }
            Deed::Release(which) if !self.tables.is_empty() => {
                let table = self.tables.swap_remove(which % self.tables.len());
                for page in table.pages().to_vec() {
                    self.give_up(page);
                }
                pool.release(table);
            }
            Deed::AddReference(which) if !self.holders.is_empty() => {
                let page = *self.holders.keys().nth(which % self.holders.len()).expect("in range");
                *self.holders.get_mut(&page).expect("held") += 1;
                self.extra.push(page);
                pool.add_reference(page);
            }
            Deed::DropReference(which) if !self.extra.is_empty() => {
                let page = self.extra.swap_remove(which % self.extra.len());
                self.give_up(page);
                pool.drop_reference(page);
            }
            _ => {}
        }
    }

    fn check(&self, pool: &PagePool) {
        assert_eq!(pool.free(), self.total - self.holders.len());
        assert_eq!(pool.reserved(), self.promised());
        assert!(pool.reserved() <= pool.free());
        for page in (0..self.total as u32).map(PageId) {
            assert_eq!(pool.references(page), self.holders.get(&page).copied().unwrap_or(0));
        }
    }
}

proptest! {
    #[test]
    fn the_pool_equals_a_naive_map(total in 0usize..24, deeds in prop::collection::vec(deed(), 0..200)) {
        let mut pool = PagePool::new(total);
        let mut naive = Naive { total, holders: BTreeMap::new(), tables: Vec::new(), extra: Vec::new() };
        for deed in &deeds {
            naive.act(&mut pool, deed);
            naive.check(&pool);
        }
    }
}

#[test]
#[should_panic(expected = "page 0 released twice")]
fn a_double_release_is_caught() {
    let mut pool = PagePool::new(2);
    let mut table = pool.reserve(1).unwrap();
    pool.grant(&mut table, 1);
    pool.drop_reference(PageId(0));
    pool.release(table);
}

#[test]
#[should_panic(expected = "2 pages asked for, 1 reserved")]
fn no_session_gets_more_than_it_reserved() {
    let mut pool = PagePool::new(4);
    let mut table = pool.reserve(1).unwrap();
    pool.grant(&mut table, 2);
}
