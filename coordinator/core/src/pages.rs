//! The page pool: the one place where references to pages change.
//!
//! A page is free or used. A session *reserves* pages for the tokens it has and a few more when it is admitted, more of
//! them when these are used up, and is *granted* them one by one as its tokens come. A reservation names no page; it
//! only keeps that many of the free ones from being promised twice.

use paceline_proto::PageId;

#[cfg(test)]
mod tests;

/// All pages of a placement and who holds them.
#[derive(Debug)]
pub struct PagePool {
    /// Not held by anybody; the last is granted next.
    free: Vec<PageId>,
    /// By page: how many hold it.
    references: Vec<u32>,
    /// By page: how many of these are the cache's.
    kept: Vec<u32>,
    /// Pages that nobody but the cache holds.
    idle: usize,
    /// Pages that anybody holds.
    held: usize,
    /// References, of all pages together.
    total_references: usize,
    /// Of the free pages, how many are promised.
    reserved: usize,
}

/// One session's pages: those it has, in order, and how many more it was promised. Only [`PagePool`] makes,
/// changes and ends one.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "pages that are not released are lost"]
pub struct PageTable {
    pages: Vec<PageId>,
    reserved: usize,
}

impl PageTable {
    /// The pages granted, in the order of the tokens they hold.
    pub fn pages(&self) -> &[PageId] {
        &self.pages
    }

    /// How many more may be granted.
    pub fn reserved(&self) -> usize {
        self.reserved
    }
}

impl PagePool {
    /// A pool of free pages, numbered from 0.
    ///
    /// # Panics
    /// With more pages than a page id can name.
    pub fn new(pages: usize) -> Self {
        let count = u32::try_from(pages).expect("a placement has fewer than 2^32 pages");
        Self {
            free: (0..count).rev().map(PageId).collect(),
            references: vec![0; pages],
            kept: vec![0; pages],
            idle: 0,
            held: 0,
            total_references: 0,
            reserved: 0,
        }
    }

    /// Promises `pages` pages, if so many are free and not promised to others.
    pub fn reserve(&mut self, pages: usize) -> Option<PageTable> {
        if pages > self.available() {
            return None;
        }
        self.reserved += pages;
        Some(PageTable { pages: Vec::new(), reserved: pages })
    }

    /// Promises `pages` more pages to `table`, if so many are free and not promised to others; says whether it did.
    #[must_use = "without the promise there is nothing to grant"]
    pub fn promise(&mut self, table: &mut PageTable, pages: usize) -> bool {
        let promised = pages <= self.available();
        if promised {
            table.reserved += pages;
            self.reserved += pages;
        }
        promised
    }

    /// Grants `pages` of the pages promised to `table`, and returns them.
    ///
    /// # Panics
    /// When fewer were promised.
    pub fn grant<'a>(&mut self, table: &'a mut PageTable, pages: usize) -> &'a [PageId] {
        assert!(pages <= table.reserved, "{pages} pages asked for, {} reserved", table.reserved);
        let before = table.pages.len();
        for _ in 0..pages {
            let page = self.free.pop().expect("reserved pages are free");
            self.references[page.0 as usize] = 1;
            (self.held, self.total_references) = (self.held + 1, self.total_references + 1);
            table.pages.push(page);
        }
        table.reserved -= pages;
        self.reserved -= pages;
        &table.pages[before..]
    }

    /// A table of its own for `pages` of the pages promised to `table`.
    ///
    /// # Panics
    /// When fewer were promised.
    pub fn split(&self, table: &mut PageTable, pages: usize) -> PageTable {
        table.reserved = table.reserved.checked_sub(pages).expect("no more is split off than was promised");
        PageTable { pages: Vec::new(), reserved: pages }
    }

    /// Appends a page in use to `table`, which is one more holder of it.
    ///
    /// # Panics
    /// When nobody holds it yet.
    pub fn share(&mut self, table: &mut PageTable, page: PageId) {
        self.add_reference(page);
        table.pages.push(page);
    }

    /// Takes back what `table` was promised beyond `pages` pages.
    pub fn trim(&mut self, table: &mut PageTable, pages: usize) {
        let surplus = table.reserved.saturating_sub(pages);
        table.reserved -= surplus;
        self.reserved -= surplus;
    }

    /// The cache holds a page in use too.
    ///
    /// # Panics
    /// When nobody holds it yet.
    pub fn keep(&mut self, page: PageId) {
        self.add_reference(page);
        self.kept[page.0 as usize] += 1;
        self.idle += usize::from(self.is_idle(page));
    }

    /// The cache holds it no longer.
    ///
    /// # Panics
    /// When it did not.
    pub fn forget(&mut self, page: PageId) {
        self.idle -= usize::from(self.is_idle(page));
        let kept = &mut self.kept[page.0 as usize];
        *kept = kept.checked_sub(1).expect("what is forgotten was kept");
        self.idle += usize::from(self.is_idle(page));
        self.drop_reference(page);
    }

    /// How many pages nobody but the cache holds.
    pub fn idle(&self) -> usize {
        self.idle
    }

    /// Whether nobody but the cache holds the page.
    pub fn is_idle(&self, page: PageId) -> bool {
        let page = page.0 as usize;
        self.kept[page] > 0 && self.kept[page] == self.references[page]
    }

    /// Gives back what a session had and what it was promised.
    ///
    /// # Panics
    /// When one of its pages is not in use.
    pub fn release(&mut self, table: PageTable) {
        self.reserved -= table.reserved;
        // the first page is granted next: it is the one most likely to be in a cache
        for page in table.pages.into_iter().rev() {
            self.drop_reference(page);
        }
    }

    /// One more holder of a page in use.
    ///
    /// # Panics
    /// When nobody holds it yet.
    pub fn add_reference(&mut self, page: PageId) {
        self.idle -= usize::from(self.is_idle(page));
        let references = &mut self.references[page.0 as usize];
        assert!(*references > 0, "page {} is not in use", page.0);
        *references += 1;
        self.total_references += 1;
    }

    /// One holder less; without holders the page is free.
    ///
    /// # Panics
    /// When nobody holds it.
    pub fn drop_reference(&mut self, page: PageId) {
        self.idle -= usize::from(self.is_idle(page));
        let references = &mut self.references[page.0 as usize];
        assert!(*references > 0, "page {} released twice", page.0);
        *references -= 1;
        self.total_references -= 1;
        if *references == 0 {
            self.held -= 1;
            self.free.push(page);
        }
        self.idle += usize::from(self.is_idle(page));
    }

    /// How many there are.
    pub fn total(&self) -> usize {
        self.references.len()
    }

    /// How many anybody holds.
    pub fn held(&self) -> usize {
        self.held
    }

    /// How many references there are, of all pages together.
    pub fn total_references(&self) -> usize {
        self.total_references
    }

    /// How many nobody holds, promised or not.
    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// How many of the free ones are promised.
    pub fn reserved(&self) -> usize {
        self.reserved
    }

    /// How many may be promised.
    pub fn available(&self) -> usize {
        self.free.len() - self.reserved
    }

    /// How many hold a page.
    pub fn references(&self, page: PageId) -> u32 {
        self.references[page.0 as usize]
    }
}
