_arena_topo_completion() {
    local IFS=$'
'
    COMPREPLY=( $( env COMP_WORDS="${COMP_WORDS[*]}" \
                   COMP_CWORD=$COMP_CWORD \
                   _ARENA_TOPO_COMPLETE=complete_bash $1 ) )
    return 0
}

complete -o default -F _arena_topo_completion arena-topo
